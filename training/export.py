"""Writes models/ from the training checkpoints: the target, and the heads that exist so far."""

import argparse
import json
from pathlib import Path

import torch

from checkpoint import save_eagle3, save_target
from drafter_eagle3 import Eagle3
from model import MTP, Target


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--config", default="training/configs/tales.json")
    p.add_argument("--work", required=True, help="folder with target.pt, mtp.pt, eagle3.pt")
    p.add_argument("--out", default="models/tales")
    p.add_argument("--out-eagle3", default="models/tales-eagle3")
    args = p.parse_args()
    config, work = json.loads(Path(args.config).read_text()), Path(args.work)

    def restore(module, file):
        module.load_state_dict(torch.load(work / file, map_location="cpu")["model"])
        return module

    target = restore(Target(config["model"]), "target.pt")
    has_mtp = (work / "mtp.pt").exists()
    save_target(args.out, target, restore(MTP(config["model"]), "mtp.pt") if has_mtp else None)
    print(f"{args.out}: target" + (" and MTP layer" if has_mtp else ""))
    if (work / "eagle3.pt").exists():
        save_eagle3(args.out_eagle3, restore(Eagle3(config["eagle3"]), "eagle3.pt"))
        print(f"{args.out_eagle3}: EAGLE-3 head")


if __name__ == "__main__":
    main()
