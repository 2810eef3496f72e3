#include "data/id_tokenizer.h"

#include <charconv>

#include "core/echo.h"
#include "core/error.h"
#include "data/words.h"

namespace linnet {
namespace {

class IdTokenizer final : public Tokenizer {
 public:
  IdTokenizer(int32_t vocabulary, int32_t end) : vocabulary_(vocabulary), end_(end) {}
  std::string_view kind() const override { return "id"; }
  int32_t vocabulary_size() const override { return vocabulary_; }
  int32_t eos_id() const override { return end_; }
  bool follows_separator(int32_t id) const override { return id != end_; }

 protected:
  void encode_impl(std::string_view text, std::vector<int32_t>& ids, UnknownWords*) const override {
    for (size_t at = 0; at < text.size();) {
      if (is_space(text[at])) {
        ++at;
        continue;
      }
      size_t stop = at;
      while (stop < text.size() && !is_space(text[stop])) ++stop;
      const std::string_view word = text.substr(at, stop - at);
      int32_t id = -1;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
      require_usage(
          error == std::errc() && end == word.data() + word.size() && id >= 0 && id < vocabulary_,
          Cause{ErrorCode::out_of_range, "generate.prompt"}, "'", shortened(word, 40),
          "' is no id of this model's sequences: a prompt is numbers from 0 to ", vocabulary_ - 1,
          ", separated by spaces");
      ids.push_back(id);
      at = stop;
    }
  }
  void append_bytes(int32_t id, std::string& text) const override {
    if (id == end_) return;
    if (!text.empty()) text += ' ';
    text += std::to_string(id);
  }
  std::string payload() const override { return concat(vocabulary_, " ", end_); }

 private:
  int32_t vocabulary_, end_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_id_tokenizer(int32_t vocabulary, int32_t end) {
  return std::make_unique<IdTokenizer>(vocabulary, end);
}

}  // namespace linnet
