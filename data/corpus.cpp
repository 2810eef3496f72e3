// Documents of a corpus, and the measure of tokens.
#include "data/corpus.h"
#include "data/words.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace linnet {

size_t TokenizedCorpus::document_of(int64_t position) const {
  require(position >= 0 && position < size(), "document_of: position ", position,
          " is outside a corpus of ", size(), " tokens");
  const auto after =
      std::upper_bound(documents.begin(), documents.end(), position,
                       [](int64_t at, const Document& document) { return at < document.begin; });
  return static_cast<size_t>(after - documents.begin()) - 1;
}

int64_t TokenizedCorpus::bytes() const {
  return std::accumulate(documents.begin(), documents.end(), int64_t{0},
                         [](int64_t sum, const Document& d) { return sum + d.bytes; });
}

int64_t TokenizedCorpus::words() const {
  return std::accumulate(documents.begin(), documents.end(), int64_t{0},
                         [](int64_t sum, const Document& d) { return sum + d.words; });
}

TokenMeasure::TokenMeasure(const Tokenizer& tokenizer, bool line_end_is_word,
                           bool eos_is_line_end) {
  entries_.resize(static_cast<size_t>(tokenizer.vocabulary_size()));
  for (int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    const bool eos = id == tokenizer.eos_id();
    std::string text = tokenizer.decode(std::span(&id, 1));
    if (tokenizer.follows_separator(id)) text.insert(0, 1, ' ');
    if (eos && eos_is_line_end) text.assign(1, '\n');
    Entry& entry = entries_[static_cast<size_t>(id)];
    entry.bytes = static_cast<int32_t>(text.size());
    entry.words = static_cast<int32_t>(count_words(text));
    if (line_end_is_word)
      entry.words += static_cast<int32_t>(std::count(text.begin(), text.end(), '\n'));
    entry.starts_in_word = !text.empty() && !is_space(text.front());
    entry.ends_in_word = !text.empty() && !is_space(text.back());
  }
}

}  // namespace linnet
