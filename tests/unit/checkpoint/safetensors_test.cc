// The safetensors rules: what is legal reads back, what is hostile is refused in one line.
#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "unit/checkpoint/temp_folder.h"

namespace foresail {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Hostile {
  const char* name;
  std::string bytes;
  const char* message;
};

std::string entry(const char* dtype, const char* shape, const char* offsets) {
  return fmt::format(R"({{"a":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape,
                     offsets);
}

std::string with_length(uint64_t length, std::string_view rest) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(length >> (8 * i)));
  return bytes.append(rest);
}

std::vector<Hostile> hostile_files() {
  const std::string four(4, 'x');
  const std::string two = R"("dtype":"U8","shape":[2],"data_offsets":)";
  // clang-format off
  return {
      {"Empty", "", "0 bytes are too few"},
      {"SevenBytes", "1234567", "7 bytes are too few"},
      {"LengthZero", with_length(0, ""), "does not start with '{'"},
      {"Length2To63", with_length(1ull << 63, "{}"), "claims 9223372036854775808 bytes, more than the 100000000"},
      {"LengthMax", with_length(~0ull, "{}"), "more than the 100000000"},
      {"LengthPastEnd", with_length(1000, "{}"), "claims 1000 bytes but the file has only 2"},
      {"StartsWithSpace", safetensors_bytes(" {}"), "does not start with '{'"},
      {"ByteOrderMark", safetensors_bytes("\xEF\xBB\xBF{}"), "does not start with '{'"},
      {"Array", safetensors_bytes("[]"), "does not start with '{'"},
      {"NotUtf8", safetensors_bytes("{\"\xFF\":1}"), "not valid UTF-8"},
      {"NotClosed", safetensors_bytes("{"), "a tensor name must be a string"},
      {"TrailingComma", safetensors_bytes("{\"__metadata__\":{},}"), "a tensor name must be a string"},
      {"TextAfterObject", safetensors_bytes("{}x"), "text after the end of the JSON object"},
      {"NulPadding", safetensors_bytes(std::string_view("{}\0\0", 4)), "text after the end"},
      {"DeepNesting", safetensors_bytes("{\"a\":" + std::string(200000, '[') + "}"), "'{' expected after a tensor name"},
      {"DeepMetadata", safetensors_bytes("{\"__metadata__\":{\"a\":" + std::string(200000, '{')), "must be a string"},
      {"DuplicateName", safetensors_bytes("{\"a\":{" + two + "[0,2]},\"a\":{" + two + "[2,4]}}", four), "tensor a appears twice"},
      {"DuplicateByEscape", safetensors_bytes("{\"a\":{" + two + "[0,2]},\"\\u0061\":{" + two + "[2,4]}}", four), "tensor a appears twice"},
      {"SameRange", safetensors_bytes("{\"a\":{" + two + "[0,2]},\"b\":{" + two + "[0,2]}}", "xx"), "they overlap"},
      {"Overlap", safetensors_bytes("{\"a\":{" + two + "[0,2]},\"b\":{" + two + "[1,3]}}", "xxx"), "begin at byte 1 but the data before end at 2: they overlap"},
      {"Hole", safetensors_bytes("{\"a\":{" + two + "[0,2]},\"b\":{" + two + "[3,5]}}", "xxxxx"), "tensor b: its data begin at byte 3 but the data before end at 2: there is a hole"},
      {"HoleAtStart", safetensors_bytes(entry("U8", "[2]", "[2,4]"), four), "begin at byte 2 but the data before end at 0"},
      {"Reversed", safetensors_bytes(entry("U8", "[2]", "[4,2]"), four), "data_offsets [4, 2] run backwards"},
      {"NegativeOffset", safetensors_bytes(entry("U8", "[2]", "[-2,0]")), "data_offsets must be a whole number"},
      {"MinusZero", safetensors_bytes(entry("U8", "[0]", "[-0,0]")), "data_offsets must be a whole number"},
      {"Fraction", safetensors_bytes(entry("U8", "[2.5]", "[0,2]"), "xx"), "a dimension of shape must be a whole number"},
      {"Exponent", safetensors_bytes(entry("U8", "[1e30]", "[0,2]"), "xx"), "a dimension of shape must be a whole number"},
      {"ExponentOffset", safetensors_bytes(entry("U8", "[2]", "[0,2e0]"), "xx"), "data_offsets must be a whole number"},
      {"LeadingZero", safetensors_bytes(entry("U8", "[02]", "[0,2]"), "xx"), "a dimension of shape must be a whole number"},
      {"StringNumber", safetensors_bytes(entry("U8", "[\"2\"]", "[0,2]"), "xx"), "a dimension of shape must be a whole number"},
      {"BoolInShape", safetensors_bytes(entry("U8", "[true]", "[0,1]"), "x"), "a dimension of shape must be a whole number"},
      {"NullShape", safetensors_bytes(entry("U8", "null", "[0,1]"), "x"), "'[' expected for shape"},
      {"NegativeDim", safetensors_bytes(entry("U8", "[-1]", "[0,1]"), "x"), "a dimension of shape must be a whole number"},
      {"TwentyDigits", safetensors_bytes(entry("U8", "[99999999999999999999]", "[0,1]"), "x"), "exceeds 2^63 - 1"},
      {"ProductOverflow", safetensors_bytes(entry("U8", "[4294967296,4294967296]", "[0,0]")), "the product of its shape overflows"},
      {"BitsOverflow", safetensors_bytes(entry("F64", "[4611686018427387904]", "[0,0]")), "the product of its shape overflows"},
      {"ProductWraps", safetensors_bytes(entry("F32", "[4611686018427387904,4]", "[0,0]")), "overflows"},
      {"WrongSize", safetensors_bytes(entry("BF16", "[2]", "[0,2]"), "xx"), "need 4 bytes but data_offsets span 2"},
      {"HalfByte", safetensors_bytes(entry("F4", "[3]", "[0,2]"), "xx"), "its 12 bits are no whole number of bytes"},
      {"WrongDtype", safetensors_bytes(entry("BF17", "[2]", "[0,2]"), "xx"), "unknown dtype \"BF17\""},
      {"LowerCaseDtype", safetensors_bytes(entry("bf16", "[1]", "[0,2]"), "xx"), "unknown dtype \"bf16\""},
      {"MissingDtype", safetensors_bytes(R"({"a":{"shape":[2],"data_offsets":[0,2]}})", "xx"), "dtype, shape and data_offsets are all needed"},
      {"RepeatedKey", safetensors_bytes(R"({"a":{"dtype":"U8","dtype":"I8","shape":[2],"data_offsets":[0,2]}})", "xx"), "unknown or repeated key \"dtype\""},
      {"UnknownKey", safetensors_bytes(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":1}})", "xx"), "unknown or repeated key \"x\""},
      {"EmptyEntry", safetensors_bytes(R"({"a":{}})"), "a key of a tensor must be a string"},
      {"ThreeOffsets", safetensors_bytes(entry("U8", "[2]", "[0,2,2]"), "xx"), "']' expected after the two data_offsets"},
      {"HugeRank", safetensors_bytes(R"({"a":{"dtype":"U8","data_offsets":[0,1],"shape":[1)" + std::string(200, ' ') + [] { std::string s; for (int i = 0; i < 100; ++i) s += ",1"; return s; }() + "]}}", "x"), "more than 64 dimensions"},
      {"MetadataNumber", safetensors_bytes(R"({"__metadata__":{"a":1}})"), "a value of __metadata__ must be a string"},
      {"MetadataList", safetensors_bytes(R"({"__metadata__":[]})"), "for __metadata__, which must be an object of strings"},
      {"MetadataTwice", safetensors_bytes(R"({"__metadata__":{},"__metadata__":{}})"), "__metadata__ appears twice"},
      {"LoneSurrogate", safetensors_bytes(R"({"\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"), "lone surrogate in a tensor name"},
      {"LoneLowSurrogate", safetensors_bytes(R"({"\udc00x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"), "lone surrogate in a tensor name"},
      {"HighThenLetter", safetensors_bytes(R"({"\ud800\u0041":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"), "lone surrogate in a tensor name"},
      {"RawControl", safetensors_bytes(std::string_view("{\"a\0\":{}}", 9)), "control character in a tensor name"},
      {"BadEscape", safetensors_bytes(R"({"\x":{}})"), "bad escape in a tensor name"},
      {"OpenString", safetensors_bytes(R"({"abc)"), "a tensor name is not closed"},
      {"Truncated", safetensors_bytes(entry("U8", "[4]", "[0,4]"), "xx"), "need 4 bytes but the file holds 2: it is truncated"},
      {"TrailingBytes", safetensors_bytes(entry("U8", "[2]", "[0,2]"), "xxxx"), "2 bytes follow the last tensor"},
      {"DataWithoutTensors", safetensors_bytes("{}", "x"), "1 bytes follow the last tensor"},
  };
  // clang-format on
}

class HostileSafetensors : public testing::TestWithParam<Hostile> {};

TEST_P(HostileSafetensors, IsRefusedInOneLine) {
  const TempFolder folder;
  const auto path = folder.write("model.safetensors", GetParam().bytes);
  const std::string message = error_of([&] { SafetensorsFile file(path); });
  EXPECT_THAT(message, HasSubstr(path.string()));
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_THAT(message, Not(HasSubstr("\n")));
  EXPECT_LT(message.size(), 400u);
}

INSTANTIATE_TEST_SUITE_P(All, HostileSafetensors, testing::ValuesIn(hostile_files()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Safetensors, ReadsLegalOddities) {
  const TempFolder folder;
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"z":{"data_offsets":[4,4],"shape":[0,7],"dtype":"F32"},)"
      R"("s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"e":{"dtype":"U8","shape":[0],"data_offsets":[4,4]},)"
      R"("\u00e9\ud83d\ude00\n":{"dtype":"F4","shape":[2,3],"data_offsets":[4,7]},"b":{"dtype":"BOOL","shape":[1],"data_offsets":[7,8]}}   )";
  const SafetensorsFile file(folder.write("x.safetensors", safetensors_bytes(header, "abcdefgh")));
  ASSERT_EQ(file.header().tensor_count(), 5u);
  const auto index = file.header().find("\xC3\xA9\xF0\x9F\x98\x80\n");
  ASSERT_TRUE(index);
  const StoredTensor tensor = file.header().tensor(*index);
  EXPECT_EQ(tensor.type->name, "F4");
  EXPECT_FALSE(tensor.type->dtype);
  std::byte bytes[2];
  file.read(tensor, 1, bytes);
  EXPECT_EQ(static_cast<char>(bytes[0]), 'f');
  EXPECT_EQ(static_cast<char>(bytes[1]), 'g');
  EXPECT_TRUE(file.header().tensor(*file.header().find("s")).shape.empty());
  EXPECT_FALSE(file.header().find("missing"));
  EXPECT_FALSE(file.header().find("__metadata__"));
}

TEST(Safetensors, EmptyFileIsLegal) {
  const TempFolder folder;
  EXPECT_EQ(SafetensorsFile(folder.write("x.safetensors", safetensors_bytes("{}")))
                .header()
                .tensor_count(),
            0u);
}

TEST(Safetensors, EveryDtypeHasItsWidth) {
  for (const auto& [name, bytes] : std::vector<std::pair<const char*, int>>{
           {"BOOL", 8},    {"U8", 8},          {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8},
           {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},
           {"F16", 16},    {"BF16", 16},       {"I32", 32},        {"U32", 32},    {"F32", 32},
           {"C64", 64},    {"F64", 64},        {"I64", 64},        {"U64", 64},    {"F4", 4},
           {"F6_E2M3", 6}, {"F6_E3M2", 6}}) {
    const std::string header = entry(name, "[8]", fmt::format("[0,{}]", bytes).c_str());
    EXPECT_EQ(SafetensorsHeader(header, bytes, "x").tensor_count(), 1u) << name;
  }
}

TEST(Safetensors, LongAndStrangeNamesStayShortInMessages) {
  const std::string name(1 << 20, 'n');
  const std::string header = "{\"" + name + R"(":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}})";
  const std::string message = error_of([&] { SafetensorsHeader(header, 1, "x"); });
  EXPECT_THAT(message, HasSubstr("(1048576 bytes)"));
  EXPECT_LT(message.size(), 400u);
  const std::string nul = error_of([&] {
    SafetensorsHeader(R"({"a\u0000\u000ab":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}})", 1,
                      "x");
  });
  EXPECT_THAT(nul, HasSubstr("tensor a\\x00\\x0ab:"));
}

TEST(Safetensors, AMillionEmptyTensorsCostLittle) {
  constexpr int kCount = 1'000'000;
  std::string header = "{";
  for (int i = 0; i < kCount; ++i)
    header += fmt::format(R"({}"t{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                          i ? "," : "", i);
  header += "}";
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  const SafetensorsHeader parsed(header, 0, "x");
  getrusage(RUSAGE_SELF, &after);
  EXPECT_EQ(parsed.tensor_count(), static_cast<size_t>(kCount));
  EXPECT_TRUE(parsed.find("t999999"));
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 300 * 1024);  // KiB
}

TEST(Safetensors, ATensorRepeatedAMillionTimesIsRefused) {
  std::string header = "{";
  for (int i = 0; i < 100000; ++i)
    header +=
        fmt::format(R"({}"t":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", i ? "," : "");
  header += "}";
  EXPECT_THAT(error_of([&] { SafetensorsHeader(header, 0, "x"); }),
              HasSubstr("tensor t appears twice"));
}

TEST(Safetensors, AFileThatShrinksIsAnErrorNotASignal) {
  const TempFolder folder;
  const std::string data(100000, 'x');
  const auto path =
      folder.write("x.safetensors", safetensors_bytes(entry("U8", "[100000]", "[0,100000]"), data));
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, 500);
  std::vector<std::byte> out(100000);
  EXPECT_THAT(error_of([&] { file.read(file.header().tensor(0), 0, out); }),
              HasSubstr("truncated"));
}

TEST(SafetensorsWriter, WritesWhatItReads) {
  const TempFolder folder;
  const std::vector<TensorSpec> specs = {
      {"w", {2, 3}, DType::kBF16}, {"quo\"te", {}, DType::kF32}, {"none", {0}, DType::kI64}};
  const auto path = folder.path() / "x.safetensors";
  {
    SafetensorsWriter writer(path, specs);
    const std::string bytes = "abcdefghijklmnop";
    writer.append(std::as_bytes(std::span(bytes).first(5)));
    writer.append(std::as_bytes(std::span(bytes).subspan(5)));
    EXPECT_FALSE(std::filesystem::exists(path));
    writer.close();
  }
  const SafetensorsFile file(path);
  EXPECT_EQ(std::filesystem::file_size(path) % 8, 0u);
  const StoredTensor scalar = file.header().tensor(*file.header().find("quo\"te"));
  std::byte bytes[4];
  file.read(scalar, 0, bytes);
  EXPECT_EQ(static_cast<char>(bytes[0]), 'm');
  EXPECT_EQ(file.header().tensor(*file.header().find("w")).shape.size(), 2u);
}

// /dev/null given as the output must stay a device.
TEST(SafetensorsWriter, WritesThroughWhatIsNoPlainFile) {
  const TempFolder folder;
  const auto path = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const int reader = ::open(path.c_str(), O_RDWR | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  const std::vector<TensorSpec> specs{{"a", {4}, DType::kF32}};
  const std::vector<std::byte> data(16, std::byte{7});
  {
    SafetensorsWriter writer(path, specs);
    writer.append(data);
    writer.close();
  }
  EXPECT_TRUE(std::filesystem::is_fifo(path));
  char bytes[4096];
  const ssize_t got = ::read(reader, bytes, sizeof bytes);
  ASSERT_GT(got, 16);
  EXPECT_EQ(std::string(bytes + got - 16, 16), std::string(16, '\x07'));

  write_file(path, "text");
  EXPECT_TRUE(std::filesystem::is_fifo(path));
  EXPECT_EQ(::read(reader, bytes, sizeof bytes), 4);
  { SafetensorsWriter unfinished(path, specs); }
  EXPECT_TRUE(std::filesystem::is_fifo(path));
  ::close(reader);

  EXPECT_NE(error_of([&] { write_file(folder.path(), "x"); }), "");
  EXPECT_NE(error_of([&] { SafetensorsWriter writer(folder.path(), specs); }), "");
  EXPECT_TRUE(std::filesystem::is_directory(folder.path()));
}

TEST(SafetensorsWriter, AnUnfinishedFileLeavesNothing) {
  const TempFolder folder;
  const std::vector<TensorSpec> specs = {{"w", {2}, DType::kF32}};
  { SafetensorsWriter writer(folder.path() / "x.safetensors", specs); }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace foresail
