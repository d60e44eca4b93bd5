#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "text/byte_level.h"
#include "text/json_fields.h"
#include "text/tokenizer_parts.h"

namespace foresail {
namespace {

using Vocabulary = std::unordered_map<std::string_view, int32_t>;

// Values whose presence changes the algorithm; every byte-level model leaves them out.
void refuse_other_kinds(const JsonFields& model) {
  if (model.text("type", "BPE") != "BPE")
    throw_model_error("{}: unsupported model \"{}\", only BPE", model.where("type"),
                      shown(model.text("type")));
  if (model.flag("byte_fallback", false))
    throw_model_error("{}: SentencePiece-type BPE with byte fallback is not supported",
                      model.where("byte_fallback"));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!model.text(key, "").empty()) throw_model_error("{}: is not supported", model.where(key));
  if (model.has("dropout") && model.json()["dropout"] != 0.0)
    throw_model_error("{}: is not supported", model.where("dropout"));
}

class JsonReader {
 public:
  explicit JsonReader(const std::string& where) : where_(where) {}

  TokenizerParts read(const Json& json) {
    const JsonFields file(json, where_);
    const JsonFields model(file.object("model"), file.where("model"));
    refuse_other_kinds(model);
    parts_.normalizer =
        Normalizer::parse(json.value("normalizer", Json()), file.where("normalizer"));
    parts_.pre_tokenizer =
        PreTokenizer::parse(json.value("pre_tokenizer", Json()), file.where("pre_tokenizer"));
    if (!parts_.pre_tokenizer.is_byte_level())
      throw_model_error("{}: only byte-level BPE is supported, and no ByteLevel step is here",
                        file.where("pre_tokenizer"));
    if (file.has("decoder")) {
      const JsonFields decoder(file.object("decoder"), file.where("decoder"));
      if (decoder.text("type") != "ByteLevel")
        throw_model_error("{}: unsupported decoder \"{}\"", decoder.where(),
                          shown(decoder.text("type")));
    }
    parts_.takes_whole_pieces = model.flag("ignore_merges", false);
    read_vocabulary(model.object("vocab"), model.where("vocab"));
    if (file.has("added_tokens"))
      read_added_tokens(file.array("added_tokens"), file.where("added_tokens"));
    index_text_tokens(model.where("vocab"));
    read_merges(model.array("merges"), model.where("merges"));
    if (file.has("post_processor"))
      read_post_processor(json["post_processor"], file.where("post_processor"), 0);
    return std::move(parts_);
  }

 private:
  void read_vocabulary(const Json& vocab, const std::string& where) {
    if (vocab.empty()) throw_model_error("{}: is empty", where);
    vocabulary_.reserve(vocab.size());
    for (const auto& entry : vocab.items()) {
      const std::string& spelling = entry.key();
      if (!entry.value().is_number_integer())
        throw_model_error("{}: the id of \"{}\" must be an integer", where, shown(spelling));
      const int32_t id = checked_token_id(entry.value().get<int64_t>(), where);
      // A token outside the byte map is spelled as it reads; no text becomes it.
      const auto bytes = bytes_of_byte_level(spelling);
      if (!parts_.tokens.add(id, bytes ? *bytes : spelling))
        throw_model_error("{}: id {} has two tokens, one of them \"{}\"", where, id,
                          shown(spelling));
      if (bytes && !bytes->empty()) text_ids_.push_back(id);
    }
    for (const auto& entry : vocab.get_ref<const Json::object_t&>())
      vocabulary_.emplace(entry.first, entry.second.get<int32_t>());
  }

  void read_added_tokens(const Json& list, const std::string& where) {
    std::unordered_map<std::string, int32_t> seen;
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string entry_where = fmt::format("{}[{}]", where, i);
      AddedToken token = parse_added_token(list[i], entry_where);
      token.id = checked_token_id(JsonFields(list[i], entry_where).integer("id"), entry_where);
      const auto known = vocabulary_.find(token.content);
      if (known != vocabulary_.end() && known->second != token.id)
        throw_model_error("{}: \"{}\" has id {} here and {} in the vocabulary", entry_where,
                          shown(token.content), token.id, known->second);
      if (!seen.emplace(token.content, token.id).second)
        throw_model_error("{}: \"{}\" is listed twice", entry_where, shown(token.content));
      if (known == vocabulary_.end() && !parts_.tokens.add(token.id, token.content))
        throw_model_error("{}: id {} of \"{}\" is taken", entry_where, token.id,
                          shown(token.content));
      parts_.added_tokens.push_back(std::move(token));
    }
  }

  // Plain text never becomes an added token, not even by merging its spelling together.
  void index_text_tokens(const std::string& where) {
    is_added_.resize(parts_.tokens.vocab_size());
    for (const AddedToken& token : parts_.added_tokens) is_added_[token.id] = true;
    std::erase_if(text_ids_, [&](int32_t id) { return is_added_[id]; });
    parts_.tokens.index(text_ids_);
    check_byte_tokens(parts_.tokens, where);
  }

  int32_t known_id(std::string_view spelling, const std::string& where, size_t rank) const {
    const auto found = vocabulary_.find(spelling);
    if (found == vocabulary_.end())
      throw_model_error("{}[{}]: \"{}\" is not in the vocabulary", where, rank, shown(spelling));
    return found->second;
  }

  void read_merges(const Json& merges, const std::string& where) {
    std::string joined;
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      std::string_view left, right;
      const Json& merge = merges[rank];
      if (merge.is_string()) {
        const std::string_view text = merge.get_ref<const std::string&>();
        const size_t space = text.find(' ');
        if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
          throw_model_error("{}[{}]: must be two tokens with a space between them", where, rank);
        left = text.substr(0, space);
        right = text.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0].get_ref<const std::string&>();
        right = merge[1].get_ref<const std::string&>();
      } else {
        throw_model_error("{}[{}]: must be a string or a pair of strings", where, rank);
      }
      joined.assign(left).append(right);
      const Merge parsed{known_id(left, where, rank), known_id(right, where, rank),
                         known_id(joined, where, rank), static_cast<uint32_t>(rank)};
      if (!is_added_[parsed.result]) parts_.merges.push_back(parsed);
    }
  }

  // Only what comes before the text: a prompt must stay open at its end.
  void read_post_processor(const Json& json, const std::string& where, int depth) {
    const JsonFields processor(json, where);
    const std::string_view type = processor.text("type");
    if (type == "ByteLevel") return;
    if (type == "Sequence" && depth < 8) {
      const Json& parts = processor.array("processors");
      for (size_t i = 0; i < parts.size(); ++i)
        read_post_processor(parts[i], fmt::format("{}[{}]", where, i), depth + 1);
      return;
    }
    if (type != "TemplateProcessing")
      throw_model_error("{}: unsupported post-processor \"{}\"", where, shown(type));
    const Json& single = processor.array("single");
    const std::string single_where = processor.where("single");
    for (const Json& item : single) {
      const JsonFields fields(item, single_where);
      if (fields.has("Sequence")) return;
      const JsonFields special(fields.object("SpecialToken"), single_where);
      add_prefix(special.text("id"), single_where);
    }
  }

  void add_prefix(std::string_view name, const std::string& where) {
    for (const AddedToken& token : parts_.added_tokens)
      if (token.content == name) return parts_.prefix_ids.push_back(token.id);
    throw_model_error("{}: \"{}\" is not an added token", where, shown(name));
  }

  const std::string& where_;
  TokenizerParts parts_;
  Vocabulary vocabulary_;
  std::vector<int32_t> text_ids_;  // byte-level tokens
  std::vector<bool> is_added_;     // [vocab_size]
};

}  // namespace

TokenizerParts parse_tokenizer_json(std::string_view text, const std::string& where) {
  const Result<Json> json = parse_json(text);
  if (!json) throw_model_error("{}: {}", where, json.error().message);
  return JsonReader(where).read(*json);
}

void check_byte_tokens(const TokenTable& tokens, const std::string& where) {
  for (int byte = 0; byte < 256; ++byte) {
    const bool never_in_utf8 = byte == 0xC0 || byte == 0xC1 || byte >= 0xF5;
    const char spelled = static_cast<char>(byte);
    if (!never_in_utf8 && tokens.find(std::string_view(&spelled, 1)) < 0)
      throw_model_error("{}: has no token for the byte 0x{:02X}", where, byte);
  }
}

}  // namespace foresail
