// A token cache. The first byte says what follows: 'f' the file as it is, else its contents, from
// which a file with the right hash is made: damage that the hash would find is not of interest.
#include "data/token_cache.h"

#include <limits>

#include "core/hash.h"
#include "core/hdf5.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_files.h"

namespace linnet::fuzz {
namespace {

constexpr const char* kPath = "cache/tokens.bin";
constexpr int32_t kVocabulary = 257;

// Takes numbers and texts from the input; zeros and nothing after its end.
class Contents {
 public:
  explicit Contents(std::string_view input) : left_(input) {}
  int64_t small() {
    if (left_.empty()) return 0;
    const auto byte = static_cast<signed char>(left_.front());
    left_.remove_prefix(1);
    return byte;
  }
  // Mostly small, sometimes at the edge of 64 bits.
  int64_t number() {
    const int64_t value = small();
    if (value == 127) return INT64_MAX - (small() & 1);
    return value == -128 ? INT64_MIN + (small() & 1) : value;
  }
  std::vector<int64_t> numbers() {
    std::vector<int64_t> values(static_cast<size_t>(small() & 15));
    for (int64_t& value : values) value = number();
    return values;
  }
  std::string text() {
    const size_t bytes = std::min<size_t>(static_cast<size_t>(small() & 31), left_.size());
    std::string value(left_.substr(0, bytes));
    left_.remove_prefix(bytes);
    std::erase(value, '\0');
    return value;
  }
  // Seldom.
  bool flag() { return (small() & 7) == 7; }

 private:
  std::string_view left_;
};

Tensor row(Contents& contents) {
  const std::vector<int64_t> values = contents.numbers();
  const bool as_bytes = contents.flag();
  const Shape shape = {static_cast<int64_t>(values.size())};
  if (!as_bytes) return Tensor::from(values, shape);
  return Tensor::from(std::vector<uint8_t>(values.begin(), values.end()), shape);
}

// A cache of the format, in which any part may be wrong, of another type or absent.
std::string make_file(Contents contents) {
  Hdf5Writer writer;
  if (!contents.flag())
    writer.set_attribute("/", "format", contents.flag() ? contents.number() : 3);
  const std::vector<int64_t> ids = contents.numbers();
  const int64_t count = contents.flag() ? contents.number() : static_cast<int64_t>(ids.size());
  if (!contents.flag()) writer.set_attribute("/", "tokens", count);
  std::string file;
  append_tokens(std::vector<int32_t>(ids.begin(), ids.end()),
                contents.flag() ? std::numeric_limits<int32_t>::max() : kVocabulary, file);
  writer.write_text("names", contents.text());
  for (const char* name : {"begins", "bytes", "words"}) {
    if (!contents.flag()) writer.write(name, row(contents));
  }
  if (!contents.flag()) writer.set_attribute("/", "unknown_words", contents.number());
  writer.write_text("first_unknown", contents.text());
  if (!contents.flag()) writer.write_text("warnings", contents.text());
  const std::string image = writer.finish();
  const auto said = contents.flag() ? static_cast<uint64_t>(contents.number()) : image.size();
  std::string digits = concat(said);
  digits.insert(0, 16 - std::min<size_t>(digits.size(), 16), '0');
  file += concat(image, "linnet-tokens ", digits, " xxh3 ");
  return file + hash128_hex(file) + "\n";
}

}  // namespace

void read_input(std::string_view input) {
  if (input.empty()) return;
  MemoryFiles files;
  const bool as_it_is = input.front() == 'f';
  input.remove_prefix(1);
  files[kPath] = as_it_is ? std::string(input) : make_file(Contents(input));
  std::vector<std::string> warnings;
  const std::optional<CachedSplit> cached = read_token_cache(kPath, kVocabulary, warnings);
  expect(cached.has_value() == warnings.empty(), "a cache is read or there is a warning");
  if (!cached) throw Error(warnings.front());
  const TokenizedCorpus corpus{cached->tokens, cached->facts.documents};
  for (int64_t at = 0; at < corpus.size(); ++at) {
    const size_t document = corpus.document_of(at);
    expect(document < corpus.documents.size(), "every token has a document");
  }
  corpus.bytes();
  corpus.words();
  const auto ids_of = [](const TokenArray& tokens) {
    std::vector<int32_t> ids(static_cast<size_t>(tokens.size()));
    tokens.read(0, ids);
    return ids;
  };
  const std::vector<int32_t> ids = ids_of(corpus.tokens);
  {
    TokenCacheWriter writer("cache/copy.bin", kVocabulary);
    writer.add(ids);
    writer.finish(cached->facts);
  }
  const auto copy = read_token_cache("cache/copy.bin", kVocabulary, warnings);
  expect(copy && ids_of(copy->tokens) == ids, "a cache that was written reads back");
}

}  // namespace linnet::fuzz
