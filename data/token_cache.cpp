// Token cache files: the tokens, an HDF5 image of everything else, and one line with the size of
// that image and the hash of all that precedes the hash. Tokens come first, so that they lie at a
// multiple of their size and can be written before anything else is known.
#include "data/token_cache.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "core/error.h"
#include "core/files.h"
#include "core/hdf5.h"
#include "core/interrupt.h"

namespace linnet {
namespace {

constexpr int64_t kFormat = 3;
constexpr int64_t kMaxBytes = int64_t{1} << 40;  // of a document, so that sums do not overflow
constexpr std::string_view kLine = "linnet-tokens ", kHashLabel = " xxh3 ";
constexpr size_t kSizeDigits = 16, kHashDigits = 32;
constexpr size_t kLineBytes = kLine.size() + kSizeDigits + kHashLabel.size() + kHashDigits + 1;
// Written, and brought to the disk, at once.
constexpr size_t kWriteBytes = size_t{1} << 20, kSyncBytes = size_t{32} << 20;

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

// Everything of a file but its tokens.
SplitFacts parse(std::string_view image, const std::string& path) {
  const Hdf5Reader reader(image, path);
  require(reader.int_attribute("/", "format") == kFormat, Cause{ErrorCode::malformed, "", path},
          path, ": another format of the cache");
  SplitFacts facts;
  facts.tokens = reader.int_attribute("/", "tokens");
  const auto names = split_lines(reader.read_text("names"));
  const Shape count = {static_cast<int64_t>(names.size())};
  const auto begins = reader.read("begins", DType::i64, count).to_vector<int64_t>();
  const auto bytes = reader.read("bytes", DType::i64, count).to_vector<int64_t>();
  const auto words = reader.read("words", DType::i64, count).to_vector<int64_t>();
  for (size_t i = 0; i < names.size(); ++i) {
    const int64_t previous = i == 0 ? 0 : begins[i - 1];
    require(previous <= begins[i] && begins[i] <= facts.tokens,
            Cause{ErrorCode::malformed, "", path}, path, ": documents out of order");
    const auto possible = [](int64_t size) { return size >= 0 && size <= kMaxBytes; };
    require(possible(bytes[i]) && possible(words[i]), Cause{ErrorCode::malformed, "", path}, path,
            ": a document of an impossible size");
    facts.documents.push_back({names[i], begins[i], bytes[i], words[i]});
  }
  require(!begins.empty() && begins.front() == 0, Cause{ErrorCode::malformed, "", path}, path,
          ": no document at the start");
  facts.unknown = {reader.int_attribute("/", "unknown_words"), reader.read_text("first_unknown")};
  facts.warnings = split_lines(reader.read_text("warnings"));
  return facts;
}

// What the last line says of the bytes of the image.
size_t image_bytes(std::string_view file, const std::string& path) {
  const Cause cause{ErrorCode::malformed, "", path};
  require(file.size() > kLineBytes, cause, path, ": truncated");
  const std::string_view line = file.substr(file.size() - kLineBytes);
  const std::string_view digits = line.substr(kLine.size(), kSizeDigits);
  size_t bytes = 0;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), bytes);
  const bool number = status == std::errc() && end == digits.data() + digits.size();
  require(line.starts_with(kLine) && number && bytes <= file.size() - kLineBytes &&
              line.substr(kLine.size() + kSizeDigits).starts_with(kHashLabel) &&
              line.back() == '\n',
          cause, path, ": the last line is none of a token cache (truncated or changed)");
  return bytes;
}

// Throws Error when an id, of `width` bytes, is outside the vocabulary or the hash is another. One
// pass, of which nothing stays in memory.
void verify(const MappedFile& file, const TokenArray& tokens, size_t width) {
  constexpr int64_t kBlock = 1 << 16;
  const std::string_view all = file.bytes();
  Hash128 hash;
  std::vector<int32_t> ids;
  size_t hashed = 0;
  for (int64_t begin = 0; begin < tokens.size(); begin += kBlock) {
    interruption_point();
    ids.resize(static_cast<size_t>(std::min(kBlock, tokens.size() - begin)));
    const std::string_view stored = all.substr(hashed, ids.size() * width);
    file.require_whole();
    hash.add(stored);
    tokens.read(begin, ids);
    hashed += stored.size();
  }
  file.require_whole();
  const size_t hash_at = all.size() - kHashDigits - 1;
  hash.add(all.substr(hashed, hash_at - hashed));
  require(all.substr(hash_at, kHashDigits) == hash.hex(),
          Cause{ErrorCode::malformed, "", file.path()}, file.path(),
          ": the contents do not have the hash of the last line (truncated or changed)");
}

// Which is made.
std::string in_folder(const std::string& path) {
  create_directories(parent_path(path));
  return path;
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
  return join_path(folder, concat("tokens-", hash128_hex(inputs), ".bin"));
}

std::optional<CachedSplit> read_token_cache(const std::string& path, int32_t vocabulary_size,
                                            std::vector<std::string>& warnings) {
  if (!exists(path)) return std::nullopt;
  try {
    const auto file = std::make_shared<const MappedFile>(path);
    file->require_whole();
    const size_t image = image_bytes(file->bytes(), path);
    const size_t tokens_bytes = file->bytes().size() - kLineBytes - image;
    const auto width = static_cast<size_t>(token_bytes(vocabulary_size));
    const TokenArray tokens(file, static_cast<int64_t>(tokens_bytes / width), vocabulary_size);
    verify(*file, tokens, width);
    SplitFacts facts = parse(file->bytes().substr(tokens_bytes, image), path);
    require(facts.tokens == tokens.size() && tokens_bytes % width == 0,
            Cause{ErrorCode::malformed, "", path}, path, ": token count differs");
    return CachedSplit{tokens, std::move(facts)};
  } catch (const Error& error) {
    warnings.push_back(concat("the token cache is rebuilt: ", error.what()));
    return std::nullopt;
  }
}

TokenCacheWriter::TokenCacheWriter(const std::string& path, int32_t vocabulary_size)
    : file_(in_folder(path)), vocabulary_size_(vocabulary_size) {}

void TokenCacheWriter::write(std::string_view bytes) {
  hash_.add(bytes);
  file_.write(bytes);
  unsynced_ += bytes.size();
  if (unsynced_ < kSyncBytes) return;
  file_.sync();
  unsynced_ = 0;
}

void TokenCacheWriter::add(std::span<const int32_t> ids) {
  append_tokens(ids, vocabulary_size_, waiting_);
  if (waiting_.size() < kWriteBytes) return;
  write(waiting_);
  waiting_.clear();
}

void TokenCacheWriter::finish(const SplitFacts& facts) {
  Hdf5Writer writer;
  writer.set_attribute("/", "format", kFormat);
  writer.set_attribute("/", "tokens", facts.tokens);
  std::vector<std::string> names;
  for (const Document& document : facts.documents) names.push_back(document.name);
  writer.write_text("names", join_lines(names));
  writer.write("begins", int64_tensor(facts.documents, &Document::begin));
  writer.write("bytes", int64_tensor(facts.documents, &Document::bytes));
  writer.write("words", int64_tensor(facts.documents, &Document::words));
  writer.set_attribute("/", "unknown_words", facts.unknown.count);
  writer.write_text("first_unknown", facts.unknown.first);
  writer.write_text("warnings", join_lines(facts.warnings));
  const std::string image = writer.finish();
  write(waiting_);
  write(image);
  const std::string digits = concat(image.size());
  write(concat(kLine, std::string(kSizeDigits - digits.size(), '0'), digits, kHashLabel));
  file_.write(hash_.hex() + '\n');
  file_.commit();
}

}  // namespace linnet
