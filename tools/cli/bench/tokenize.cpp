// linnet bench tokenize.
#include <unistd.h>

#include <chrono>
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <optional>

#include "core/files.h"
#include "core/interrupt.h"
#include "core/json.h"
#include "data/document_pieces.h"
#include "data/file_list.h"
#include "data/token_cache.h"
#include "data/tokenizer_kinds.h"
#include "recipes/engine/environment.h"
#include "tools/cli/bench/bench.h"

namespace linnet::cli {
namespace {

struct Arguments {
  TokenizerConfig tokenizer;
  std::vector<std::string> files;
  bool cased = false, json = false;
};

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

int bench_tokenize(Arguments arguments) {
  arguments.tokenizer.lowercase = !arguments.cased;
  const auto tokenizer = make_tokenizer(arguments.tokenizer);
  std::vector<std::string> files;
  for (const std::string& path : arguments.files) {
    if (!is_directory(path)) {
      files.push_back(path);
      continue;
    }
    for (const std::string& name : files_below(path)) files.push_back(join_path(path, name));
  }
  const std::string cache =
      join_path(std::filesystem::temp_directory_path().string(), concat("linnet-", ::getpid()));
  const StopCleanup cleanup([&cache] { file_system().remove(cache); });
  std::optional<TokenCacheWriter> writer(std::in_place, cache, tokenizer->vocabulary_size());
  double seconds = 0;
  int64_t bytes = 0;
  SplitFacts facts;
  for (const std::string& path : files) {
    facts.documents.push_back({path, facts.tokens, 0, 0});
    DocumentPieces text({path, path},
                        [&](std::string_view seen) { return tokenizer->last_cut(seen); });
    while (text.next()) {
      const Stopwatch watch;
      const auto ids = tokenizer->encode(text.piece(), &facts.unknown);
      seconds += watch.seconds();
      writer->add(ids);
      bytes += static_cast<int64_t>(text.piece().size());
      facts.tokens += static_cast<int64_t>(ids.size());
    }
  }
  require_usage(bytes > 0, Cause{ErrorCode::out_of_range, "FILE"}, "the files hold no text");
  writer->finish(facts);
  writer.reset();
  const auto cache_bytes = static_cast<double>(file_bytes(cache));
  std::vector<std::string> warnings;
  const Stopwatch watch;
  require(read_token_cache(cache, tokenizer->vocabulary_size(), warnings).has_value(),
          "the tokens could not be read back");
  const double cached_rate = cache_bytes / 1e6 / watch.seconds();
  file_system().remove(cache);
  const double megabytes_per_second = static_cast<double>(bytes) / 1e6 / seconds;
  const double tokens_per_second = static_cast<double>(facts.tokens) / seconds;
  const auto peak = static_cast<int64_t>(peak_resident_memory_bytes());
  if (arguments.json) {
    std::cout << JsonValue::object()
                     .set("tokenizer", tokenizer->kind())
                     .set("files", files.size())
                     .set("bytes", bytes)
                     .set("tokens", facts.tokens)
                     .set("unknown_words", facts.unknown.count)
                     .set("seconds", seconds)
                     .set("megabytes_per_second", megabytes_per_second)
                     .set("tokens_per_second", tokens_per_second)
                     .set("cached_megabytes_per_second", cached_rate)
                     .set("peak_memory_bytes", peak)
                     .dump()
              << "\n";
    return 0;
  }
  std::cout << tokenizer->kind() << ", one thread: " << files.size()
            << (files.size() == 1 ? " file, " : " files, ") << bytes << " bytes, " << facts.tokens
            << " tokens, " << facts.unknown.count << " unknown words\n"
            << std::fixed << std::setprecision(1) << megabytes_per_second << " MB/s, "
            << tokens_per_second / 1e6 << " million tokens/s; cached tokens are loaded at "
            << std::setprecision(0) << cached_rate << " MB/s; peak memory " << std::setprecision(1)
            << static_cast<double>(peak) / kMiB << " MiB\n";
  return 0;
}

}  // namespace

void add_bench_tokenize(CLI::App& bench, Command& chosen) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      bench.add_subcommand("tokenize", "encode texts on one thread, and load their cached tokens");
  command->add_option("FILE", arguments->files, "texts, or folders of them")->required();
  command->add_option("--tokenizer", arguments->tokenizer.kind, tokenizer_kinds_text())
      ->capture_default_str();
  command->add_option("--tokenizer-path", arguments->tokenizer.path, tokenizer_paths_text());
  command->add_flag("--cased", arguments->cased, "wordpiece: keep upper case and accents");
  command->add_flag("--json", arguments->json, "one JSON object on stdout");
  command->callback(
      [arguments, &chosen] { chosen = [arguments] { return bench_tokenize(*arguments); }; });
}

}  // namespace linnet::cli
