// The subcommands of `linnet bench`: each adds itself to `bench` and stores in `chosen` what to run
// when it was given.
#pragma once

#include "tools/cli/commands.h"

namespace linnet::cli {

void add_bench_train(CLI::App& bench, Command& chosen);
void add_bench_model(CLI::App& bench, Command& chosen);
void add_bench_decode(CLI::App& bench, Command& chosen);
void add_bench_attention(CLI::App& bench, Command& chosen);
void add_bench_conv(CLI::App& bench, Command& chosen);
void add_bench_gemm(CLI::App& bench, Command& chosen);
void add_bench_loss(CLI::App& bench, Command& chosen);
void add_bench_allreduce(CLI::App& bench, Command& chosen);
void add_bench_tokenize(CLI::App& bench, Command& chosen);
void add_bench_tree(CLI::App& bench, Command& chosen);

// Their times are kept.
inline constexpr int64_t kMaxRuns = 1'000'000;
inline constexpr double kMiB = 1024.0 * 1024.0;

}  // namespace linnet::cli
