// Reading tokenizer.json, part by part.
#include "data/tokenizer_json_parts.h"

#include <cmath>
#include <unordered_map>

#include "data/json_section.h"

namespace linnet {
namespace {

constexpr size_t kJsonLimitBytes = size_t{32} << 20;

std::string type_of(const JsonSection& section) {
  return section.at("type").text();
}

[[noreturn]] void refuse_type(const JsonSection& section, std::string_view known) {
  section.at("type").refuse(concat("is '", shortened(type_of(section), 40),
                                   "', which linnet does not do; it does ", known));
}

void require_false(const JsonSection& section, std::string_view key) {
  if (section.flag(key, false)) section.at(key).refuse("must be false: linnet does not do this");
}

void require_empty(const JsonSection& section, std::string_view key) {
  if (section.has(key) && !section.at(key).text().empty())
    section.at(key).refuse("must be empty: linnet does not do this");
}

void read_normalizer(const JsonSection& section, std::vector<NormalizerStep>& steps) {
  const std::string type = type_of(section);
  using Kind = NormalizerStep::Kind;
  if (type == "Sequence") {
    section.require_keys({"type", "normalizers"});
    for (const JsonSection& each : section.at("normalizers").elements())
      read_normalizer(each, steps);
    return;
  }
  NormalizerStep step;
  if (type == "BertNormalizer") {
    section.require_keys(
        {"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
    step.bert.lowercase = section.at("lowercase").boolean();
    step.bert.clean = section.at("clean_text").boolean();
    step.bert.ideographs = section.at("handle_chinese_chars").boolean();
    step.bert.strip_accents = section.flag("strip_accents", step.bert.lowercase);
    step.bert.as_library = true;
    steps.push_back(step);
    return;
  }
  static const std::unordered_map<std::string, NormalForm> forms = {{"NFD", NormalForm::nfd},
                                                                    {"NFC", NormalForm::nfc},
                                                                    {"NFKD", NormalForm::nfkd},
                                                                    {"NFKC", NormalForm::nfkc}};
  if (type == "Precompiled") {
    section.require_keys({"type", "precompiled_charsmap"});
    if (!section.has("precompiled_charsmap")) return;
    step.kind = Kind::map;
    step.map = std::make_shared<const CharactersMap>(section.at("precompiled_charsmap").text(),
                                                     section.file());
    steps.push_back(step);
    return;
  }
  if (type == "Strip") {
    section.require_keys({"type", "strip_left", "strip_right"});
    step.kind = Kind::strip;
    step.left = section.at("strip_left").boolean();
    step.right = section.at("strip_right").boolean();
    steps.push_back(step);
    return;
  }
  if (type == "Replace") {
    section.require_keys({"type", "pattern", "content"});
    const JsonSection pattern = section.at("pattern");
    if (!pattern.has("Regex") || pattern.at("Regex").text() != " {2,}")
      pattern.refuse("is not the regular expression ' {2,}', the only one that linnet replaces");
    step.kind = Kind::join_spaces;
    step.content = section.at("content").text();
    steps.push_back(step);
    return;
  }
  if (const auto form = forms.find(type); form != forms.end()) {
    step.kind = Kind::form;
    step.form = form->second;
  } else if (type == "Lowercase") {
    step.kind = Kind::lowercase;
  } else if (type == "StripAccents") {
    step.kind = Kind::strip_accents;
  } else {
    refuse_type(
        section,
        "BertNormalizer, Lowercase, StripAccents, NFC, NFD, NFKC, NFKD, Precompiled, Strip, "
        "Replace and Sequence");
  }
  section.require_keys({"type"});
  steps.push_back(step);
}

void check_metaspace(const JsonSection& section) {
  section.require_keys(
      {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
  if (section.at("replacement").text() != kMetaspace)
    section.at("replacement").refuse("must be U+2581");
  // Older files say add_prefix_space.
  const bool always = section.has("prepend_scheme")
                          ? section.at("prepend_scheme").text() == "always"
                          : section.flag("add_prefix_space", true);
  if (!always) section.refuse("must put U+2581 before every text: prepend_scheme 'always'");
  if (!section.flag("split", true)) section.at("split").refuse("must be true");
}

void read_pre_tokenizer(const JsonSection& section, TokenizerJsonParts& parts) {
  if (section.is_null()) section.refuse("is null; linnet needs one that divides text into words");
  const std::string type = type_of(section);
  if (type == "ByteLevel") {
    section.require_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (!section.flag("use_regex", true))
      section.at("use_regex").refuse("must be true: linnet divides text as GPT-2 does");
    parts.pre_tokenizer = PreTokenizerKind::byte_level;
    parts.prefix_space = section.flag("add_prefix_space", true);
    return;
  }
  if (type == "Metaspace") {
    check_metaspace(section);
    parts.pre_tokenizer = PreTokenizerKind::metaspace;
    return;
  }
  if (type == "Sequence") {
    section.require_keys({"type", "pretokenizers"});
    const std::vector<JsonSection> both = section.at("pretokenizers").elements();
    if (both.size() != 2 || type_of(both[0]) != "WhitespaceSplit" ||
        type_of(both[1]) != "Metaspace")
      section.refuse("must be WhitespaceSplit and then Metaspace");
    both[0].require_keys({"type"});
    check_metaspace(both[1]);
    parts.pre_tokenizer = PreTokenizerKind::metaspace_words;
    return;
  }
  if (type == "BertPreTokenizer")
    parts.pre_tokenizer = PreTokenizerKind::bert;
  else if (type == "Whitespace")
    parts.pre_tokenizer = PreTokenizerKind::words;
  else if (type == "WhitespaceSplit")
    parts.pre_tokenizer = PreTokenizerKind::white_space;
  else
    refuse_type(section,
                "ByteLevel, BertPreTokenizer, Whitespace, WhitespaceSplit, Metaspace, and "
                "Sequence of the last two");
  section.require_keys({"type"});
}

// Ids of the tokens of the model, and of added ones that it lacks.
class Vocabulary {
 public:
  Vocabulary(const JsonSection& vocab, const JsonSection& added, std::vector<std::string>& tokens)
      : tokens_(tokens) {
    struct Entry {
      std::string_view token;
      int64_t id;
      JsonSection section;
    };
    std::vector<Entry> entries;
    if (vocab.value().is_array()) {  // of Unigram: tokens and scores, in the order of ids
      for (const JsonSection& each : vocab.elements()) {
        if (!each.value().is_array() || each.elements().size() != 2)
          each.refuse("must be a token and its score");
        entries.push_back({each.elements()[0].text(), std::ssize(entries), each});
      }
    } else {
      for (const JsonMember& member : vocab.object().members()) {
        const JsonSection id(member.value, vocab.file(), vocab.place());
        entries.push_back({member.key, id.integer(), id});
      }
    }
    std::unordered_map<std::string_view, int64_t> known;
    for (const Entry& entry : entries) known.emplace(entry.token, entry.id);
    if (!added.is_null()) {
      for (const JsonSection& each : added.elements()) {
        const std::string_view content = each.at("content").text();
        const auto [found, is_new] = known.emplace(content, each.at("id").integer());
        if (is_new) entries.push_back({content, found->second, each.at("id")});
        if (found->second != each.at("id").integer())
          each.at("id").refuse(concat("differs from that of the vocabulary, ", found->second));
      }
    }
    if (entries.empty()) vocab.refuse("has no tokens");
    tokens_.resize(entries.size());
    std::vector<bool> taken(entries.size());
    for (const auto& [token, id, section] : entries) {
      if (id < 0 || id >= static_cast<int64_t>(entries.size()) || taken[static_cast<size_t>(id)])
        section.refuse(concat("numbers '", shortened(token, 40), "' with ", id,
                              "; the ids must be 0 to ", entries.size() - 1, ", each once"));
      taken[static_cast<size_t>(id)] = true;
      tokens_[static_cast<size_t>(id)] = token;
      ids_.emplace(token, static_cast<int32_t>(id));
    }
  }
  // -1 when there is none.
  int32_t find(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? -1 : found->second;
  }
  int32_t first_of(std::initializer_list<std::string_view> tokens) const {
    for (const std::string_view token : tokens)
      if (const int32_t id = find(token); id >= 0) return id;
    return -1;
  }
  // The id that `section` gives, which must be one of these.
  int32_t checked(const JsonSection& section) const {
    const int64_t id = section.integer();
    if (id < 0 || id >= static_cast<int64_t>(tokens_.size()))
      section.refuse(concat("is no id of the vocabulary: ", id));
    return static_cast<int32_t>(id);
  }

 private:
  std::vector<std::string>& tokens_;
  std::unordered_map<std::string_view, int32_t> ids_;  // views into the parsed file
};

std::vector<AddedToken> read_added(const JsonSection& section, const Vocabulary& vocabulary) {
  std::vector<AddedToken> tokens;
  if (section.is_null()) return tokens;
  for (const JsonSection& each : section.elements()) {
    each.require_keys(
        {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.id = vocabulary.checked(each.at("id"));
    token.content = each.at("content").text();
    if (token.content.empty()) each.at("content").refuse("must not be empty");
    token.special = each.flag("special", false);
    token.normalized = each.flag("normalized", !token.special);
    token.single_word = each.flag("single_word", false);
    token.lstrip = each.flag("lstrip", false);
    token.rstrip = each.flag("rstrip", false);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

void read_bpe(const JsonSection& model, TokenizerJsonParts& parts) {
  model.require_keys({"type", "dropout", "unk_token", "continuing_subword_prefix",
                      "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges", "vocab",
                      "merges"});
  if (model.has("dropout") &&
      (!model.at("dropout").value().is_number() || model.at("dropout").value().number() != 0))
    model.at("dropout").refuse("must be null: linnet does not do this");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    require_empty(model, key);
  for (const char* key : {"byte_fallback", "ignore_merges"}) require_false(model, key);
  for (const JsonSection& each : model.at("merges").elements()) {
    std::string merge;
    if (each.value().is_array()) {
      const auto pair = each.elements();
      if (pair.size() != 2) each.refuse("must be two tokens");
      merge = concat(pair[0].text(), " ", pair[1].text());
    } else {
      merge = each.text();
    }
    if (merge.empty() || merge.find_first_of("\r\n") != std::string::npos)
      each.refuse("must be two token spellings and a space between");
    parts.merges += merge;
    parts.merges += '\n';
  }
}

void read_wordpiece(const JsonSection& model, const Vocabulary& vocabulary,
                    TokenizerJsonParts& parts) {
  model.require_keys(
      {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  WordPieceOptions& options = parts.wordpiece;
  options.prefix = model.at("continuing_subword_prefix").text();
  options.longest_word = model.at("max_input_chars_per_word").integer();
  options.unknown_id = vocabulary.find(model.at("unk_token").text());
  if (options.unknown_id < 0) model.at("unk_token").refuse("is not in the vocabulary");
}

void read_unigram(const JsonSection& model, TokenizerJsonParts& parts) {
  model.require_keys({"type", "unk_id", "vocab", "byte_fallback"});
  require_false(model, "byte_fallback");
  for (const JsonSection& each : model.at("vocab").elements()) {
    const JsonSection score = each.elements()[1];
    if (!score.value().is_number() || !std::isfinite(score.value().number()))
      score.refuse("must be a number");
    if (each.elements()[0].text().empty()) each.refuse("must not be empty");
    parts.scores.push_back(score.value().number());
  }
  const int64_t unknown = model.at("unk_id").integer();
  if (unknown < 0 || unknown >= std::ssize(parts.scores))
    model.at("unk_id").refuse("is no id of the vocabulary");
  parts.unknown_id = parts.special.unk = static_cast<int32_t>(unknown);
}

// A template as words: "cls:0 A:0 sep:0". `special` names the special tokens in order of
// appearance.
std::string template_text(const JsonSection& pieces, std::vector<std::string>& special) {
  std::string text;
  for (const JsonSection& piece : pieces.elements()) {
    piece.require_keys({"SpecialToken", "Sequence"});
    const bool sequence = piece.has("Sequence");
    const JsonSection inner = piece.at(sequence ? "Sequence" : "SpecialToken");
    inner.require_keys({"id", "type_id"});
    std::string name = inner.at("id").text();
    if (!sequence) {
      size_t i = 0;
      while (i < special.size() && special[i] != name) ++i;
      if (i == special.size()) special.push_back(name);
      name = concat("special", i);
    }
    text += concat(text.empty() ? "" : " ", name, ":", inner.at("type_id").integer());
  }
  return text;
}

void read_template(const JsonSection& section, const Vocabulary& vocabulary,
                   TokenizerJsonParts& parts) {
  section.require_keys({"type", "single", "pair", "special_tokens"});
  std::vector<std::string> special;
  const std::string single = template_text(section.at("single"), special);
  const std::string pair = template_text(section.at("pair"), special);
  if (single == "A:0" && (pair == "A:0 B:0" || pair == "A:0 B:1")) return;
  const auto id_of = [&](const std::string& name) {
    const auto ids = section.at("special_tokens").at(name).at("ids").elements();
    if (ids.size() != 1) section.at("special_tokens").refuse("must give each token one id");
    return vocabulary.checked(ids[0]);
  };
  if (single == "A:0 special0:0" && pair == "A:0 special0:0 B:0 special0:0") {
    parts.pair_style = PairStyle::t5;
    parts.special.sep = id_of(special[0]);
    return;
  }
  const bool bert = pair == "special0:0 A:0 special1:0 B:1 special1:1";
  const bool roberta = pair == "special0:0 A:0 special1:0 special1:0 B:0 special1:0";
  if (single != "special0:0 A:0 special1:0" || !(bert || roberta))
    section.refuse(
        "is a template of another form than that of BERT, RoBERTa or T5, which linnet does not do");
  parts.pair_style = bert ? PairStyle::bert : PairStyle::roberta;
  parts.special.cls = id_of(special[0]);
  parts.special.sep = id_of(special[1]);
}

void read_post_processor(const JsonSection& section, const Vocabulary& vocabulary,
                         TokenizerJsonParts& parts) {
  if (section.is_null()) return;
  const std::string type = type_of(section);
  if (type == "TemplateProcessing") return read_template(section, vocabulary, parts);
  if (type == "ByteLevel") return;  // it changes offsets alone
  if (type != "BertProcessing" && type != "RobertaProcessing")
    refuse_type(section, "TemplateProcessing, BertProcessing, RobertaProcessing and ByteLevel");
  section.require_keys({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
  parts.pair_style = type == "BertProcessing" ? PairStyle::bert : PairStyle::roberta;
  const auto id_of = [&](const char* name) {
    const auto pair = section.at(name).elements();
    if (pair.size() != 2) section.at(name).refuse("must be a token and its id");
    return vocabulary.checked(pair[1]);
  };
  parts.special.cls = id_of("cls");
  parts.special.sep = id_of("sep");
}

// Ids whose part the file says, or which are called as everyone calls them.
void read_special(const JsonSection& file, const Vocabulary& vocabulary,
                  TokenizerJsonParts& parts) {
  SpecialIds& special = parts.special;
  const JsonSection model = file.at("model");
  if (model.has("unk_token")) special.unk = vocabulary.find(model.at("unk_token").text());
  if (special.unk < 0 && parts.bpe) special.unk = vocabulary.find("<unk>");
  special.mask = vocabulary.first_of({"[MASK]", "<mask>"});
  special.bos = special.cls;
  special.eos = special.sep;
  if (special.eos < 0) special.bos = special.eos = vocabulary.find("<|endoftext|>");
  if (file.has("padding") && file.at("padding").has("pad_id"))
    special.pad = vocabulary.checked(file.at("padding").at("pad_id"));
  else
    special.pad = vocabulary.first_of({"[PAD]", "<pad>", "<|endoftext|>"});
}

void check_decoder(const JsonSection& file, const TokenizerJsonParts& parts) {
  if (!file.has("decoder")) return;
  const char* expected = parts.bpe ? "ByteLevel" : parts.unigram() ? "Metaspace" : "WordPiece";
  if (type_of(file.at("decoder")) != expected)
    refuse_type(file.at("decoder"), concat(expected, " for this model"));
}

}  // namespace

TokenizerJsonParts read_tokenizer_json(std::string_view text, std::string_view what) {
  const JsonValue json = parse_json(text, std::string(what), {kJsonLimitBytes, 16});
  const JsonValue nothing;
  const JsonSection file(json, what);
  file.require_keys({"version", "truncation", "padding", "added_tokens", "normalizer",
                     "pre_tokenizer", "post_processor", "decoder", "model"});
  const auto part = [&](const char* key) {
    return file.has(key) ? file.at(key) : JsonSection(nothing, what, key);
  };
  if (file.has("version") && file.at("version").text() != "1.0")
    file.at("version").refuse("must be 1.0");
  TokenizerJsonParts parts;
  const JsonSection model = file.at("model");
  const std::string type = model.has("type")     ? type_of(model)
                           : model.has("merges") ? "BPE"
                                                 : "WordPiece";  // as older files leave it out
  if (type != "BPE" && type != "WordPiece" && type != "Unigram")
    refuse_type(model, "BPE, WordPiece and Unigram");
  parts.bpe = type == "BPE";
  const Vocabulary vocabulary(model.at("vocab"), part("added_tokens"), parts.tokens);
  parts.added = read_added(part("added_tokens"), vocabulary);
  if (file.has("normalizer")) read_normalizer(file.at("normalizer"), parts.normalizer);
  read_pre_tokenizer(part("pre_tokenizer"), parts);
  if (parts.bpe != (parts.pre_tokenizer == PreTokenizerKind::byte_level))
    file.at("pre_tokenizer")
        .refuse(parts.bpe ? "must be ByteLevel: linnet does BPE of bytes alone"
                          : "is ByteLevel, which does not go with WordPiece");
  const bool metaspace = parts.pre_tokenizer == PreTokenizerKind::metaspace ||
                         parts.pre_tokenizer == PreTokenizerKind::metaspace_words;
  if ((type == "Unigram") != metaspace)
    file.at("pre_tokenizer")
        .refuse(metaspace ? "has Metaspace, which linnet does for the model Unigram alone"
                          : "must have Metaspace for the model Unigram");
  if (parts.bpe)
    read_bpe(model, parts);
  else if (type == "Unigram")
    read_unigram(model, parts);
  else
    read_wordpiece(model, vocabulary, parts);
  read_post_processor(part("post_processor"), vocabulary, parts);
  read_special(file, vocabulary, parts);
  check_decoder(file, parts);
  return parts;
}

}  // namespace linnet
