// Token cache files: an HDF5 image, followed by one line with its hash.
#include "data/token_cache.h"

#include <algorithm>
#include <cstdlib>
#include <span>

#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/hdf5.h"

namespace linnet {
namespace {

constexpr int64_t kFormat = 2;
constexpr int64_t kMaxBytes = int64_t{1} << 40;  // of a document, so that sums do not overflow
constexpr std::string_view kHashLine = "linnet-xxh3 ";
constexpr size_t kHashLineBytes = kHashLine.size() + 32 + 1;

// Lines of a text that ends with a line end, or is empty.
std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string join_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) {
    require(line.find('\n') == std::string::npos,
            "a name with a line end cannot be cached: ", line);
    text.append(line).push_back('\n');
  }
  return text;
}

Tensor int64_tensor(const std::vector<Document>& documents, int64_t Document::*member) {
  std::vector<int64_t> values;
  for (const Document& document : documents) values.push_back(document.*member);
  return Tensor::from(values, {static_cast<int64_t>(values.size())});
}

CachedCorpus parse(std::string_view image, const std::string& path, int32_t vocabulary_size) {
  const Hdf5Reader reader(image, path);
  require(reader.int_attribute("/", "format") == kFormat, Cause{ErrorCode::malformed, "", path},
          path, ": another format of the cache");
  CachedCorpus cached;
  TokenizedCorpus& corpus = cached.corpus;
  corpus.tokens = reader.read("tokens").to_vector<int32_t>();
  require(corpus.size() == reader.int_attribute("/", "tokens"),
          Cause{ErrorCode::malformed, "", path}, path, ": token count differs");
  const bool in_range = std::all_of(corpus.tokens.begin(), corpus.tokens.end(),
                                    [&](int32_t id) { return id >= 0 && id < vocabulary_size; });
  require(in_range, Cause{ErrorCode::malformed, "", path}, path,
          ": holds ids outside the vocabulary");
  const auto names = split_lines(reader.read_text("names"));
  const Shape count = {static_cast<int64_t>(names.size())};
  const auto begins = reader.read("begins", DType::i64, count).to_vector<int64_t>();
  const auto bytes = reader.read("bytes", DType::i64, count).to_vector<int64_t>();
  const auto words = reader.read("words", DType::i64, count).to_vector<int64_t>();
  for (size_t i = 0; i < names.size(); ++i) {
    const int64_t previous = i == 0 ? 0 : begins[i - 1];
    require(previous <= begins[i] && begins[i] <= corpus.size(),
            Cause{ErrorCode::malformed, "", path}, path, ": documents out of order");
    const auto possible = [](int64_t size) { return size >= 0 && size <= kMaxBytes; };
    require(possible(bytes[i]) && possible(words[i]), Cause{ErrorCode::malformed, "", path}, path,
            ": a document of an impossible size");
    corpus.documents.push_back({names[i], begins[i], bytes[i], words[i]});
  }
  require(!begins.empty() && begins.front() == 0, Cause{ErrorCode::malformed, "", path}, path,
          ": no document at the start");
  cached.unknown = {reader.int_attribute("/", "unknown_words"), reader.read_text("first_unknown")};
  cached.warnings = split_lines(reader.read_text("warnings"));
  return cached;
}

}  // namespace

std::string token_cache_folder() {
  if (const char* folder = std::getenv("LINNET_CACHE"); folder != nullptr && *folder != '\0')
    return folder;
  const char* home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? "" : join_path(home, ".cache/linnet");
}

std::string token_cache_path(const std::string& folder, const DataConfig& config,
                             const std::string& fingerprint, const Tokenizer& tokenizer) {
  const std::string inputs =
      concat("format ", kFormat, " tokenizer ", tokenizer.fingerprint(), " lines ",
             config.text().lines, " eos ", config.text().document_eos, " wikitext ",
             config.kind == "wikitext", " files ", fingerprint);
  return join_path(folder, concat("tokens-", hash128_hex(inputs), ".h5"));
}

std::optional<CachedCorpus> read_token_cache(const std::string& path, int32_t vocabulary_size,
                                             std::vector<std::string>& warnings) {
  if (!exists(path)) return std::nullopt;
  try {
    const std::string file = read_file(path);
    require(file.size() > kHashLineBytes, Cause{ErrorCode::malformed, "", path}, path,
            ": truncated");
    const std::string_view image = std::string_view(file).substr(0, file.size() - kHashLineBytes);
    require(file.substr(image.size()) == concat(kHashLine, hash128_hex(image), '\n'),
            Cause{ErrorCode::malformed, "", path}, path,
            ": the contents do not have the hash of the last line (truncated or changed)");
    return parse(image, path, vocabulary_size);
  } catch (const Error& error) {
    warnings.push_back(concat("the token cache is rebuilt: ", error.what()));
    return std::nullopt;
  }
}

void write_token_cache(const std::string& path, const CachedCorpus& cached,
                       int32_t vocabulary_size) {
  const TokenizedCorpus& corpus = cached.corpus;
  Hdf5Writer writer;
  writer.set_attribute("/", "format", kFormat);
  writer.set_attribute("/", "tokens", corpus.size());
  if (vocabulary_size <= 256) {
    const std::vector<uint8_t> small(corpus.tokens.begin(), corpus.tokens.end());
    writer.write("tokens", Tensor::from(small, {corpus.size()}));
  } else {
    writer.write("tokens", Tensor::from(corpus.tokens, {corpus.size()}));
  }
  std::vector<std::string> names;
  for (const Document& document : corpus.documents) names.push_back(document.name);
  writer.write_text("names", join_lines(names));
  writer.write("begins", int64_tensor(corpus.documents, &Document::begin));
  writer.write("bytes", int64_tensor(corpus.documents, &Document::bytes));
  writer.write("words", int64_tensor(corpus.documents, &Document::words));
  writer.set_attribute("/", "unknown_words", cached.unknown.count);
  writer.write_text("first_unknown", cached.unknown.first);
  writer.write_text("warnings", join_lines(cached.warnings));
  std::string image = writer.finish();
  image += concat(kHashLine, hash128_hex(image), '\n');
  create_directories(parent_path(path));
  write_file_atomically(path, image);
}

}  // namespace linnet
