// The headings under which --help lists flags, in the order in which it shows them. Flags that only
// one command has stand before them, without a heading of their own, unless they name one of these.
#pragma once

#include <array>
#include <string_view>

namespace foresail {

inline constexpr std::string_view kModelGroup = "Model";
inline constexpr std::string_view kDrawingGroup = "Drawing tokens";
inline constexpr std::string_view kDeviceGroup = "Device and memory";
inline constexpr std::string_view kSpeculationGroup = "Speculation";
inline constexpr std::string_view kAnswerGroup = "Answers";
inline constexpr std::string_view kSchedulingGroup = "Scheduling";
inline constexpr std::string_view kLimitGroup = "Limits";
inline constexpr std::string_view kNetworkGroup = "Network";
inline constexpr std::string_view kAccessGroup = "Access";
inline constexpr std::string_view kLogGroup = "Logs and metrics";
inline constexpr std::string_view kAttentionGroup = "Attention, for experiments";

inline constexpr std::array kFlagGroups = {
    kModelGroup, kDrawingGroup, kDeviceGroup, kSpeculationGroup, kAnswerGroup,   kSchedulingGroup,
    kLimitGroup, kNetworkGroup, kAccessGroup, kLogGroup,         kAttentionGroup};

}  // namespace foresail
