// What a device that the host cannot read was asked for since start-up. A plain value.
#pragma once

#include <cstdint>

namespace foresail {

struct DeviceCounts {
  int64_t waits = 0;    // of the host, for work or a copy to be done
  int64_t wait_ns = 0;  // the time that they took
  int64_t uploads = 0, upload_bytes = 0;
  int64_t downloads = 0, download_bytes = 0;
  int64_t replays = 0;  // graphs launched: recorded passes, or several joined
  int64_t passes = 0;   // all, recorded or launched kernel by kernel
  // Of the passes that were replayed: they, their kernels, and the part of both that the layers of
  // a target are.
  int64_t counted_passes = 0, launches = 0, layers = 0, layer_launches = 0;
  // Since KernelSet::time_work(): stretches of kernels that were launched together, the time in
  // them and the time between them.
  int64_t stretches = 0, busy_ns = 0, idle_ns = 0;

  DeviceCounts operator-(const DeviceCounts& before) const {
    return {.waits = waits - before.waits,
            .wait_ns = wait_ns - before.wait_ns,
            .uploads = uploads - before.uploads,
            .upload_bytes = upload_bytes - before.upload_bytes,
            .downloads = downloads - before.downloads,
            .download_bytes = download_bytes - before.download_bytes,
            .replays = replays - before.replays,
            .passes = passes - before.passes,
            .counted_passes = counted_passes - before.counted_passes,
            .launches = launches - before.launches,
            .layers = layers - before.layers,
            .layer_launches = layer_launches - before.layer_launches,
            .stretches = stretches - before.stretches,
            .busy_ns = busy_ns - before.busy_ns,
            .idle_ns = idle_ns - before.idle_ns};
  }
};

}  // namespace foresail
