// linnet bench tokenize.
#include <chrono>
#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>

#include "core/files.h"
#include "core/json.h"
#include "data/file_list.h"
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
  double seconds = 0;
  int64_t bytes = 0, tokens = 0;
  UnknownWords unknown;
  for (const std::string& path : files) {
    const std::string text = read_file(path);
    const auto start = std::chrono::steady_clock::now();
    tokens += static_cast<int64_t>(tokenizer->encode(text, &unknown).size());
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    bytes += static_cast<int64_t>(text.size());
  }
  require_usage(bytes > 0, Cause{ErrorCode::out_of_range, "FILE"}, "the files hold no text");
  const double megabytes_per_second = static_cast<double>(bytes) / 1e6 / seconds;
  const double tokens_per_second = static_cast<double>(tokens) / seconds;
  const auto peak = static_cast<int64_t>(peak_resident_memory_bytes());
  if (arguments.json) {
    std::cout << JsonValue::object()
                     .set("tokenizer", tokenizer->kind())
                     .set("files", files.size())
                     .set("bytes", bytes)
                     .set("tokens", tokens)
                     .set("unknown_words", unknown.count)
                     .set("seconds", seconds)
                     .set("megabytes_per_second", megabytes_per_second)
                     .set("tokens_per_second", tokens_per_second)
                     .set("peak_memory_bytes", peak)
                     .dump()
              << "\n";
    return 0;
  }
  std::cout << tokenizer->kind() << ", one thread: " << files.size()
            << (files.size() == 1 ? " file, " : " files, ") << bytes << " bytes, " << tokens
            << " tokens, " << unknown.count << " unknown words\n"
            << std::fixed << std::setprecision(1) << megabytes_per_second << " MB/s, "
            << tokens_per_second / 1e6 << " million tokens/s, peak memory "
            << static_cast<double>(peak) / kMiB << " MiB\n";
  return 0;
}

}  // namespace

void add_bench_tokenize(CLI::App& bench, Command& chosen) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = bench.add_subcommand("tokenize", "encode texts on one thread");
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
