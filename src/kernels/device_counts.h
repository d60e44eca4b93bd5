// What a device that the host cannot read was asked for since start-up. A plain value.
#pragma once

#include <cstdint>

namespace foresail {

struct DeviceCounts {
  int64_t waits = 0;  // of the host, for work or a copy to be done
  int64_t uploads = 0, upload_bytes = 0;
  int64_t downloads = 0, download_bytes = 0;
  int64_t replays = 0;  // recorded passes, one launch each
  int64_t passes = 0;   // all, recorded or launched kernel by kernel

  DeviceCounts operator-(const DeviceCounts& before) const {
    return {waits - before.waits,
            uploads - before.uploads,
            upload_bytes - before.upload_bytes,
            downloads - before.downloads,
            download_bytes - before.download_bytes,
            replays - before.replays,
            passes - before.passes};
  }
};

}  // namespace foresail
