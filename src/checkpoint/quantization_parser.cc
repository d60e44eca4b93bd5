#include "checkpoint/quantization_parser.h"

#include "checkpoint/printable_name.h"

namespace foresail {
namespace {

std::string compressed_tensors_name(const ConfigFields& block) {
  const std::string format = block.text_or("format", "unknown format");
  if (format == "pack-quantized") return "INT4 packed (compressed-tensors)";
  if (format == "nvfp4-pack-quantized") return "NVFP4 (compressed-tensors)";
  if (format == "mxfp4-pack-quantized") return "MXFP4 (compressed-tensors)";
  if (format == "float-quantized") return "FP8 (compressed-tensors)";
  return printable_name(format) + " (compressed-tensors)";
}

}  // namespace

std::string parse_quantization(const ConfigFields& fields) {
  if (!fields.has("quantization_config")) return {};
  const ConfigFields block = fields.child("quantization_config");
  const std::string method = block.text_or("quant_method", "unknown");
  if (method == "fp8") return block.has("weight_block_size") ? "FP8 block" : "FP8 per-tensor";
  if (method == "compressed-tensors") return compressed_tensors_name(block);
  if (method == "modelopt")
    return printable_name(block.text_or("quant_algo", "unknown")) + " (modelopt)";
  return printable_name(method);
}

std::string parse_modelopt_quantization(const ConfigFields& fields) {
  if (!fields.has("quantization")) return {};
  const ConfigFields block = fields.child("quantization");
  return block.has("quant_algo") ? printable_name(block.text("quant_algo")) + " (modelopt)" : "";
}

}  // namespace foresail
