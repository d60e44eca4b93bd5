"""The Hugging Face layout: tensor names, shards with an index, config files; and reading it back."""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from drafter_eagle3 import Eagle3
from model import MTP, Target

EXPERT_PARTS = {"experts_gate": "gate_proj", "experts_up": "up_proj", "experts_down": "down_proj"}


def target_config(c):
    """config.json as transformers' DeepseekV3ForCausalLM reads it."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
        "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
        "hidden_act": "silu", "initializer_range": 0.02,
        "head_dim": c["qk_rope_head_dim"],
        "qk_head_dim": c["qk_nope_head_dim"] + c["qk_rope_head_dim"],
        "num_key_value_heads": c["num_attention_heads"],
        **c, "rope_theta": c["rope_parameters"]["rope_theta"], "rope_interleave": True,
        "moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
        "norm_topk_prob": True, "num_nextn_predict_layers": 1, "tie_word_embeddings": True,
        "use_cache": True, "dtype": "bfloat16", "torch_dtype": "bfloat16",
    }


def eagle3_config(c):
    """config.json of the EAGLE-3 head. The aux layer ids name the layers whose outputs are taken."""
    c = dict(c)
    aux = c.pop("aux_layers")
    return {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", **c,
        "num_hidden_layers": 1, "hidden_act": "silu", "tie_word_embeddings": False,
        "bos_token_id": 0, "eos_token_id": 1, "dtype": "bfloat16", "torch_dtype": "bfloat16",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": aux, "use_aux_hidden_state": True},
    }


def stored(tensor):
    return tensor.detach().to("cpu", torch.bfloat16).contiguous()


def layer_tensors(layer, prefix):
    """{checkpoint name: tensor} of one decoder layer, experts one by one, the gate's bias in F32."""
    out = {}
    for name, tensor in layer.state_dict().items():
        part = name.removeprefix("mlp.")
        if part in EXPERT_PARTS:
            for j, expert in enumerate(tensor):
                out[f"{prefix}mlp.experts.{j}.{EXPERT_PARTS[part]}.weight"] = stored(expert)
        elif part == "gate":
            out[prefix + "mlp.gate.weight"] = stored(tensor)
        elif part == "e_score_correction_bias":
            out[prefix + "mlp.gate.e_score_correction_bias"] = tensor.detach().float().cpu()
        else:
            out[prefix + name] = stored(tensor)
    return out


def load_layer(layer, prefix, tensors):
    state = {}
    for name, old in layer.state_dict().items():
        part = name.removeprefix("mlp.")
        if part in EXPERT_PARTS:
            state[name] = torch.stack([tensors[f"{prefix}mlp.experts.{j}.{EXPERT_PARTS[part]}.weight"]
                                       for j in range(old.shape[0])])
        elif part == "gate":
            state[name] = tensors[prefix + "mlp.gate.weight"]
        elif part == "e_score_correction_bias":
            state[name] = tensors[prefix + "mlp.gate.e_score_correction_bias"]
        else:
            state[name] = tensors[prefix + name]
    layer.load_state_dict(state)


def save_target(folder, target, mtp=None):
    """config.json, generation_config.json, two shards and their index."""
    folder, c = Path(folder), target.config
    folder.mkdir(parents=True, exist_ok=True)
    n = c["num_hidden_layers"]
    shards = [{"model.embed_tokens.weight": stored(target.embed_tokens.weight)}, {}]
    for i, layer in enumerate(target.layers):
        shards[i >= (n + 1) // 2] |= layer_tensors(layer, f"model.layers.{i}.")
    shards[1]["model.norm.weight"] = stored(target.norm.weight)
    if mtp is not None:
        prefix = f"model.layers.{n}."
        shards[1] |= layer_tensors(mtp.layer, prefix)
        for name in ("enorm", "hnorm", "eh_proj"):
            shards[1][f"{prefix}{name}.weight"] = stored(getattr(mtp, name).weight)
        shards[1][prefix + "shared_head.norm.weight"] = stored(mtp.norm.weight)
    weight_map, total = {}, 0
    for i, tensors in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map |= {name: file for name in tensors}
        total += sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / "model.safetensors.index.json", index)
    write_json(folder / "config.json", target_config(c))
    write_json(folder / "generation_config.json", {
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
        "do_sample": True, "temperature": 0.8, "top_p": 0.95})


def save_eagle3(folder, eagle):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {n: t.cpu() if n in ("d2t", "t2d") else stored(t) for n, t in eagle.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", eagle3_config(eagle.config))


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_tensors(folder):
    tensors = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, "pt") as f:
            tensors |= {k: f.get_tensor(k) for k in f.keys()}
    return tensors


def load_target(folder):
    """(Target, MTP or None) with the stored weights as float32."""
    config = json.loads((Path(folder) / "config.json").read_text())
    tensors = {k: v.float() for k, v in read_tensors(folder).items()}
    target, n = Target(config), config["num_hidden_layers"]
    target.embed_tokens.weight.data.copy_(tensors["model.embed_tokens.weight"])
    target.norm.weight.data.copy_(tensors["model.norm.weight"])
    for i, layer in enumerate(target.layers):
        load_layer(layer, f"model.layers.{i}.", tensors)
    prefix = f"model.layers.{n}."
    if prefix + "eh_proj.weight" not in tensors:
        return target, None
    mtp = MTP(config)
    load_layer(mtp.layer, prefix, tensors)
    for name in ("enorm", "hnorm", "eh_proj"):
        getattr(mtp, name).weight.data.copy_(tensors[f"{prefix}{name}.weight"])
    mtp.norm.weight.data.copy_(tensors[prefix + "shared_head.norm.weight"])
    return target, mtp


def load_eagle3(folder):
    config = json.loads((Path(folder) / "config.json").read_text())
    config["aux_layers"] = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    eagle = Eagle3(config)
    tensors = read_tensors(folder)
    eagle.load_state_dict({k: v if k in ("d2t", "t2d") else v.float() for k, v in tensors.items()})
    return eagle
