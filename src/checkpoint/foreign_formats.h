// Model files of other layouts, told by their names, so that a refusal can say what lies there.
// Any thread.
#pragma once

#include <filesystem>
#include <string>

namespace foresail {

// "params.json is the config of an unconverted checkpoint ... convert ...", or empty when nothing
// in the folder is known. `missing`: the file that was looked for.
std::string foreign_format(const std::filesystem::path& model_dir, const std::string& missing);

}  // namespace foresail
