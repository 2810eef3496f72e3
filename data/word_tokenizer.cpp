// The word tokenizer and its vocabulary.
#include "data/word_tokenizer.h"
#include "data/words.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "core/utf8.h"
#include "data/lines.h"
#include "data/preparation.h"

namespace linnet {
namespace {

// Calls on_word(word) for each word and on_line_end() for each '\n'.
template <typename OnWord, typename OnLineEnd>
void for_each_word(std::string_view text, OnWord on_word, OnLineEnd on_line_end) {
  constexpr size_t kReportEvery = 1 << 16;
  size_t at = 0, reported = 0;
  while (at < text.size()) {
    if (at - reported >= kReportEvery) report_bytes_done(reported = at);
    if (is_space(text[at])) {
      if (text[at] == '\n') on_line_end();
      ++at;
      continue;
    }
    const size_t begin = at;
    while (at < text.size() && !is_space(text[at])) ++at;
    on_word(text.substr(begin, at - begin));
  }
}

class WordTokenizer final : public Tokenizer {
 public:
  WordTokenizer(std::vector<std::string> words, std::string_view what) : words_(std::move(words)) {
    ids_.reserve(words_.size());
    for (size_t id = 0; id < words_.size(); ++id) {
      const std::string& word = words_[id];
      const auto refuse = [&](ErrorCode code, const auto&... why) {
        throw Error({code, word, concat(what, ":", id + 1)},
                    concat(what, ": line ", id + 1, why...));
      };
      if (word.empty() || std::any_of(word.begin(), word.end(), is_space))
        refuse(ErrorCode::malformed, " must hold exactly one word without white space");
      if (!ids_.emplace(word, static_cast<int32_t>(id)).second)
        refuse(ErrorCode::repeated, " repeats the word '", word, "'; each word may appear once");
    }
    eos_ = find(kEndOfLineWord);
    unknown_ = find(kUnknownWord);
  }

  std::string_view kind() const override { return "word"; }
  int32_t vocabulary_size() const override { return static_cast<int32_t>(words_.size()); }
  int32_t eos_id() const override { return eos_; }
  SpecialIds special_ids() const override { return {.unk = unknown_, .eos = eos_}; }
  bool follows_separator(int32_t id) const override { return id != eos_; }
  bool lines_end_with_eos() const override { return true; }
  size_t last_cut(std::string_view text) const override { return end_of_last_space(text); }

 protected:
  void encode_impl(std::string_view text, std::vector<int32_t>& ids,
                   UnknownWords* unknown) const override {
    require_utf8(text, "text for the word tokenizer");
    const auto on_word = [&](std::string_view word) {
      const int32_t id = find(word);
      if (id >= 0) {
        ids.push_back(id);
        return;
      }
      require(unknown_ >= 0, Cause{ErrorCode::unknown_name, word}, "the word '", word,
              "' is not among the ", words_.size(),
              " words of the vocabulary, which has no <unk>; use other words");
      if (unknown != nullptr) unknown->add(word);
      ids.push_back(unknown_);
    };
    const auto on_line_end = [&] {
      require(eos_ >= 0, Cause{ErrorCode::unknown_name, kEndOfLineWord},
              "the text has a line end, but the vocabulary has no <eos>");
      ids.push_back(eos_);
    };
    for_each_word(text, on_word, on_line_end);
  }
  void append_bytes(int32_t id, std::string& text) const override {
    if (id == eos_) {
      text += '\n';
      return;
    }
    if (!text.empty() && text.back() != '\n') text += ' ';
    text += words_[static_cast<size_t>(id)];
  }
  std::string payload() const override {
    std::string out;
    for (const std::string& word : words_) out.append(word).push_back('\n');
    return out;
  }

 private:
  int32_t find(std::string_view word) const {
    const auto found = ids_.find(word);
    return found == ids_.end() ? -1 : found->second;
  }

  std::vector<std::string> words_;
  std::unordered_map<std::string_view, int32_t> ids_;  // views into words_
  int32_t eos_ = -1, unknown_ = -1;
};

}  // namespace

void WordVocabularyBuilder::count(std::string_view word) {
  const auto found = counts_.find(word);
  if (found != counts_.end())
    ++found->second;
  else
    counts_.emplace(word, 1);
}

void WordVocabularyBuilder::add(std::string_view piece) {
  for_each_word(
      piece, [&](std::string_view word) { count(word); }, [&] { count(kEndOfLineWord); });
  if (!piece.empty()) open_line_ = piece.back() != '\n';
}

void WordVocabularyBuilder::end_text() {
  if (std::exchange(open_line_, false)) count(kEndOfLineWord);
}

std::unique_ptr<Tokenizer> WordVocabularyBuilder::build(int64_t max_size) const {
  require(!counts_.empty(), Cause{ErrorCode::out_of_range},
          "cannot build a word vocabulary: the training text is empty");
  require_usage(max_size == 0 || max_size >= 3,
                Cause{ErrorCode::out_of_range, "data.tokenizer.vocabulary_size"},
                "vocabulary_size must be 0 (all words) or at least 3, got ", max_size);
  std::vector<std::pair<std::string, int64_t>> entries;
  for (const auto& [word, count] : counts_)
    if (word != kUnknownWord && word != kEndOfLineWord) entries.emplace_back(word, count);
  const auto more_frequent = [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  };
  std::sort(entries.begin(), entries.end(), more_frequent);
  const auto keep = static_cast<size_t>(std::max<int64_t>(max_size - 2, 0));
  if (max_size > 0 && entries.size() > keep) entries.resize(keep);
  for (const std::string_view special : {kUnknownWord, kEndOfLineWord}) {
    const auto found = counts_.find(special);
    entries.emplace_back(special, found == counts_.end() ? 0 : found->second);
  }
  std::sort(entries.begin(), entries.end(), more_frequent);
  std::vector<std::string> words;
  words.reserve(entries.size());
  for (auto& entry : entries) words.push_back(std::move(entry.first));
  return std::make_unique<WordTokenizer>(std::move(words), "word vocabulary");
}

std::unique_ptr<Tokenizer> word_tokenizer_from_payload(std::string_view text,
                                                       std::string_view what) {
  require_utf8(text, what);
  std::vector<std::string> words;
  for (TextLines lines(text); lines.next();) words.emplace_back(lines.line());
  require(!words.empty(), Cause{ErrorCode::malformed, "", what}, what,
          ": expected a vocabulary with one word a line, found nothing");
  return std::make_unique<WordTokenizer>(std::move(words), what);
}

std::unique_ptr<Tokenizer> load_word_tokenizer(const std::string& path) {
  constexpr uint64_t kLimitBytes = uint64_t{1} << 30;
  const std::string text = read_file(path, kLimitBytes);
  return word_tokenizer_from_payload(without_byte_order_mark(text), path);
}

void save_word_vocabulary(const Tokenizer& tokenizer, const std::string& path) {
  require_usage(tokenizer.kind() == "word", Cause{ErrorCode::conflict, "data.tokenizer.kind"},
                "only a word tokenizer has a vocabulary file, this is a ", tokenizer.kind(),
                " tokenizer");
  const std::string blob = tokenizer.serialise();
  const std::string_view words = std::string_view(blob).substr(blob.find('\n') + 1);
  // Readers take one mark away: where the first word begins with one, that must be another.
  const size_t mark = words.size() - without_byte_order_mark(words).size();
  write_file_atomically(path, concat(words.substr(0, mark), words));
}

}  // namespace linnet
