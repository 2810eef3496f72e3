// The byte tokenizer.
#include "data/byte_tokenizer.h"

#include "core/error.h"

namespace linnet {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  explicit ByteTokenizer(bool eos) : eos_(eos) {}
  std::string_view kind() const override { return "byte"; }
  int32_t vocabulary_size() const override { return eos_ ? 257 : 256; }
  int32_t eos_id() const override { return eos_ ? 256 : -1; }
  size_t last_cut(std::string_view text) const override { return text.size(); }

 protected:
  void encode_impl(std::string_view text, std::vector<int32_t>& ids, UnknownWords*) const override {
    ids.reserve(text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  void append_bytes(int32_t id, std::string& text) const override {
    if (id < 256) text += static_cast<char>(id);
  }
  std::string payload() const override { return eos_ ? "eos" : "plain"; }

 private:
  bool eos_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer(bool eos) {
  return std::make_unique<ByteTokenizer>(eos);
}

std::unique_ptr<Tokenizer> byte_tokenizer_from_payload(std::string_view payload,
                                                       std::string_view what) {
  require(payload == "eos" || payload == "plain", Cause{ErrorCode::malformed, "", what}, what,
          ": expected a byte tokenizer marked 'eos' or 'plain'; the stored tokenizer is damaged");
  return make_byte_tokenizer(payload == "eos");
}

}  // namespace linnet
