// linnet bench: its subcommands.
#include "tools/cli/bench/bench.h"

#include <CLI/CLI.hpp>

namespace linnet::cli {

void add_bench(CLI::App& app, Command& chosen) {
  CLI::App* bench = app.add_subcommand("bench",
                                       "time training steps, whole models, generation, attention "
                                       "mechanisms, convolutions, matrix products, losses, "
                                       "tokenizers, trees of guesses or sums over processes");
  bench->require_subcommand(1);
  add_bench_train(*bench, chosen);
  add_bench_model(*bench, chosen);
  add_bench_decode(*bench, chosen);
  add_bench_attention(*bench, chosen);
  add_bench_conv(*bench, chosen);
  add_bench_gemm(*bench, chosen);
  add_bench_loss(*bench, chosen);
  add_bench_allreduce(*bench, chosen);
  add_bench_tokenize(*bench, chosen);
  add_bench_tree(*bench, chosen);
}

}  // namespace linnet::cli
