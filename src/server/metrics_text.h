// /metrics: everything counted, in the Prometheus text format.
#pragma once

#include <string>

#include "foresail/output.h"
#include "server/http/http_limits.h"
#include "server/metrics.h"

namespace foresail {

struct MetricsSources {
  const Metrics& metrics;
  const HttpCounters& http;
  EngineStats engine;  // of the latest step
  std::string model_name;
  std::string version;
  bool vllm_aliases = true;  // the names that load tools and gateways read
};

std::string metrics_text(const MetricsSources& sources);

}  // namespace foresail
