// One process or many: the same order of examples, the same losses, the same scores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <ios>
#include <thread>
#include <tuple>

#include "core/sanitizers.h"
#include "core/threads.h"
#include "recipes/engine/evaluate.h"
#include "recipes/engine/make_task.h"
#include "recipes/engine/train_step.h"
#include "tests/recipes/data_parallel.h"

namespace linnet {
namespace {

using test::is_rank;
using test::pass_on_ranks;
using testing::HasSubstr;

// Under a sanitizer fewer updates do: it is slow, and sees the same operations in each.
constexpr const char* kSteps = kAddressSanitizer ? "train.max_steps=8" : "train.max_steps=50";
constexpr const char* kEvaluations =
    kAddressSanitizer ? "evaluate.every_steps=4" : "evaluate.every_steps=25";

class DataParallelTraining : public test::DataParallel {
 protected:
  // Trains the recipes, by name, on one process, on two and on four.
  void compare(const std::vector<std::pair<std::string, Recipe>>& recipes) const {
    if (!is_rank()) {
      for (const auto& [name, recipe] : recipes) run(recipe, name + "-1");
    }
    for (const int size : {2, 4}) {
      pass_on_ranks(size, [&](Communicator& ranks) {
        for (const auto& [name, recipe] : recipes) {
          const TrainOutcome outcome = train_on(ranks, recipe, concat(name, "-", size));
          EXPECT_EQ(outcome.progress.step, *recipe.train.max_steps) << name;
        }
      });
      if (is_rank()) continue;
      for (const auto& [name, recipe] : recipes) {
        expect_same_metrics(name + "-1", concat(name, "-", size));
      }
    }
  }
};

// Dropout, as many micro-batches as a rank has rows, averaged weights.
std::vector<std::string> with_all(std::vector<std::string> changes) {
  changes.insert(changes.end(),
                 {"model.dropout=0.1", kSteps, "train.tokens_per_update=128", "train.micro_batch=1",
                  "optim.ema={decay: 0.9, warmup: true}", kEvaluations});
  return changes;
}

// Rows of several documents each, clipped gradients, and moments that are shared out or not.
TEST_F(DataParallelTraining, DecodersTrainAsOnOneProcess) {
  if (!is_rank()) {
    for (uint64_t i = 0; i < 60; ++i) {
      folder_.write(concat("short", i, ".txt"), test::some_text(2 + i % 7, i));
    }
  }
  std::vector<std::pair<std::string, Recipe>> recipes;
  for (const auto& [attention, options, shares] : {std::tuple("softmax", "", false),
                                                   {"lavo", ", rank: 4, basis_train: qr", true},
                                                   {"linear", "", true},
                                                   {"abc_mlp", "", false},
                                                   {"s4d", "", true}}) {
    recipes.emplace_back(
        attention, decoder(with_all({concat("model.attention={name: ", attention, options, "}"),
                                     concat("train.shard_optimizer=", shares ? "true" : "false"),
                                     "optim.clip_norm=0.1"}),
                           "short*.txt"));
  }
  compare(recipes);
}

TEST_F(DataParallelTraining, OtherUpdatesAreThoseOfOneProcess) {
  const auto with = [this](const std::vector<std::string>& changes) {
    return decoder(with_all(changes));
  };
  // Buckets of a few parameters each, before what mixers correct.
  compare({{"buckets", with({"train.bucket_mib=0.001",
                             "model.attention={name: lavo, rank: 4, basis_train: qr}"})},
           {"shares_value",
            with({"train.shard_optimizer=true", "optim.clip_norm=0", "optim.clip_value=0.01"})},
           {"recompute",
            with({"train.recompute=block", "train.bucket_mib=0.001", "model.layer_dropout=0.3"})},
           {"stream", with({"data.cross_documents=true"})}});
}

TEST_F(DataParallelTraining, ClassifiersTrainAsOnOneProcess) {
  std::vector<std::pair<std::string, Recipe>> recipes;
  for (const char* shares : {"false", "true"}) {
    recipes.emplace_back(concat("shares-", shares),
                         classifier({"model.dropout=0.1", kSteps, "train.micro_batch=2",
                                     "optim.ema={decay: 0.9, warmup: true}", "optim.clip_norm=0.5",
                                     kEvaluations, concat("train.shard_optimizer=", shares)}));
  }
  compare(recipes);
}

// Each goes on from the checkpoint of the one before, with and without shares of the optimizer.
TEST_F(DataParallelTraining, AnotherNumberOfProcessesContinues) {
  const auto until = [this](int64_t steps, bool shares) {
    return decoder({concat("train.max_steps=", steps), "model.dropout=0.1",
                    "train.tokens_per_update=128", "train.micro_batch=2",
                    "optim.schedule={kind: cosine, warmup_steps: 2, steps: 30}",
                    "optim.ema={decay: 0.9, warmup: true}",
                    concat("train.shard_optimizer=", shares ? "true" : "false")});
  };
  if (!is_rank()) {
    run(until(30, false), "straight");
    run(until(10, false), "whole");
    run(until(10, true), "shares");
    run(until(10, true), "both");
  }
  for (const auto& [size, steps] : {std::pair(2, 20), {4, 30}}) {
    pass_on_ranks(size, [&, size = size, steps = steps](Communicator& ranks) {
      train_on(ranks, until(steps, false), "whole");
      train_on(ranks, until(steps, true), "shares");
      train_on(ranks, until(steps, size == 2), "both");
    });
  }
  if (is_rank()) return;
  for (const char* name : {"whole", "shares", "both"}) expect_same_metrics("straight", name);
}

TEST_F(DataParallelTraining, TwoProcessesContinueBitForBit) {
  const auto until = [this](int64_t steps, bool shares) {
    return decoder({concat("train.max_steps=", steps), "model.dropout=0.1",
                    "train.tokens_per_update=128", "train.micro_batch=2",
                    concat("train.shard_optimizer=", shares ? "true" : "false")});
  };
  pass_on_ranks(2, [&](Communicator& ranks) {
    for (const bool shares : {false, true}) {
      train_on(ranks, until(9, shares), concat("straight-", shares));
      train_on(ranks, until(4, shares), concat("cut-", shares));
      train_on(ranks, until(9, shares), concat("cut-", shares));
    }
  });
  if (is_rank()) return;
  expect_equal(left("straight-0"), left("cut-0"), "two processes");
  expect_equal(left("straight-1"), left("cut-1"), "two processes, shares");
}

// The examples that each rank computes, in its order, make up those of one process.
TEST_F(DataParallelTraining, RanksShareTheExamplesInTheirOrder) {
  const auto body = [&](Communicator& ranks) {
    const Recipe recipe = decoder({"train.tokens_per_update=192", "train.micro_batch=2"});
    const std::unique_ptr<Task> task = make_task(recipe);
    const std::unique_ptr<Transformer> model = build_model(recipe, task->sizes());
    Job job(ranks);
    Updater updater = make_updater(recipe, model->parameters(), job);
    TrainStep step(recipe, *task, *model, updater, job);
    EXPECT_EQ(step.examples_per_update(), 12);
    Progress progress;
    const std::vector<ExampleRange>& parts = step.micro_batches();
    int64_t taken = 0;
    const auto next_batch = [&] {
      const auto& [first, count] = parts[static_cast<size_t>(taken % std::ssize(parts))];
      return task->train_batch(taken++ / std::ssize(parts) * 12 + first, count);
    };
    const auto ids_of = [&](int64_t first, int64_t count) {
      std::string ids;
      for (const int64_t id : task->train_batch(first, count).example_ids) ids += concat(id, ' ');
      return ids;
    };
    for (int64_t update = 0; update < 9; ++update) {
      std::string own, all;
      for (const auto& [first, count] : parts) own += ids_of(progress.examples + first, count);
      for (const std::string& part : ranks.all_gather_text(own)) all += part;
      EXPECT_EQ(all, ids_of(progress.examples, 12));
      const int64_t targets = task->train_batch(progress.examples, 12).target_count;
      const UpdateResult result = step.run(progress, next_batch);
      EXPECT_EQ(result.own_examples, 12 / ranks.size());
      EXPECT_EQ(result.targets, targets);
      EXPECT_EQ(progress.examples, 12 * (update + 1));
    }
  };
  for (const int size : {2, 4}) pass_on_ranks(size, body);
}

TEST_F(DataParallelTraining, SendsWhatTheBucketsHold) {
  pass_on_ranks(2, [&](Communicator& ranks) {
    const auto sent_by = [&](const std::vector<std::string>& changes) {
      const Recipe recipe = decoder(changes);
      const std::unique_ptr<Task> task = make_task(recipe);
      const std::unique_ptr<Transformer> model = build_model(recipe, task->sizes());
      Job job(ranks);
      Updater updater = make_updater(recipe, model->parameters(), job);
      TrainStep step(recipe, *task, *model, updater, job);
      Progress progress;
      const int64_t before = ranks.bytes_sent();
      step.run(progress, [&] {
        const auto& [first, count] = step.micro_batches().front();
        return task->train_batch(first, count);
      });
      return std::pair(ranks.bytes_sent() - before, model->parameters().weights().elements());
    };
    constexpr int64_t kSmall = 256;  // the sum of counts, and lengths that do not divide
    // A share of the gradients to the other rank, and the sums of the own share; once, behind the
    // last of three micro-batches.
    const auto [sent, elements] = sent_by({"train.bucket_mib=0.001", "train.micro_batch=1"});
    EXPECT_NEAR(static_cast<double>(sent), static_cast<double>(4 * elements), kSmall);
    const int64_t half = sent_by({"train.reduce=bf16"}).first;
    EXPECT_NEAR(static_cast<double>(half), static_cast<double>(2 * elements), kSmall);
    const int64_t shares = sent_by({"train.shard_optimizer=true"}).first;
    EXPECT_NEAR(static_cast<double>(shares), static_cast<double>(4 * elements), kSmall);
  });
}

TEST_F(DataParallelTraining, SharedMomentsTakeTheirPartOfTheMemory) {
  pass_on_ranks(4, [&](Communicator& ranks) {
    const Recipe recipe = decoder({"train.shard_optimizer=true"});
    const std::unique_ptr<Task> task = make_task(recipe);
    const std::unique_ptr<Transformer> model = build_model(recipe, task->sizes());
    Job job(ranks);
    const Updater updater = make_updater(recipe, model->parameters(), job);
    size_t bytes = 0;
    for (const auto& [name, tensor] : updater.optimizer->state()) bytes += tensor.bytes();
    EXPECT_LE(bytes, 2 * model->parameters().weights().bytes() / 4 + 128);
  });
}

// Of the same micro-batches, a rank holds what one process does, and two copies of a bucket.
TEST_F(DataParallelTraining, ARankNeedsNoMoreMemoryThanOneProcessAndItsBuckets) {
  constexpr int64_t kBucket = 1 << 12, kSmall = 1 << 10;  // bytes; and those of small values
  const Recipe recipe =
      decoder({"train.tokens_per_update=128", "train.micro_batch=2", "train.max_steps=3",
               concat("train.bucket_mib=", static_cast<double>(kBucket) / (1 << 20))});
  reset_peak_memory({});
  if (!is_rank()) run(recipe, "one");
  pass_on_ranks(2, [&](Communicator& ranks) { train_on(ranks, recipe, "two"); });
  if (is_rank()) return;
  const auto peak_of = [](const std::string& name) {
    int64_t peak = 0;
    for (const JsonValue& line : metrics_of(name)) {
      const JsonValue* bytes = line.find("peak_tensor_bytes");
      if (bytes != nullptr) peak = std::max(peak, bytes->integer());
    }
    return peak;
  };
  EXPECT_GT(peak_of("one"), 10 * kBucket);
  EXPECT_LE(peak_of("two"), peak_of("one") + 2 * kBucket + kSmall);
}

TEST_F(DataParallelTraining, RoundedGradientsTrainToo) {
  pass_on_ranks(2, [&](Communicator& ranks) {
    for (const char* shares : {"false", "true"}) {
      const TrainOutcome outcome =
          train_on(ranks,
                   decoder({"train.reduce=bf16", "train.max_steps=20",
                            concat("train.shard_optimizer=", shares), "evaluate.every_steps=10"}),
                   concat("bf16-", shares));
      EXPECT_LT(outcome.last_score->nll(), 5.4);  // of 257 tokens, ln 257 = 5.55
    }
  });
}

// A signal that one rank receives ends all at the same step.
TEST_F(DataParallelTraining, ASignalOnOneRankStopsAll) {
  pass_on_ranks(2, [&](Communicator& ranks) {
    std::thread later;
    if (ranks.rank() == 1) {
      later = std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        request_stop(SIGTERM);
      });
    }
    const TrainOutcome outcome = train_on(
        ranks, decoder({"train.max_steps=10000000", "train.log_every_steps=1000"}), "stopped");
    if (later.joinable()) later.join();
    EXPECT_EQ(outcome.exit_code, kStopped);
    const std::vector<std::string> steps =
        ranks.all_gather_text(std::to_string(outcome.progress.step));
    EXPECT_EQ(steps[0], steps[1]);
    EXPECT_GT(outcome.progress.step, 0);
  });
}

TEST_F(DataParallelTraining, TheClockOfRank0EndsAll) {
  pass_on_ranks(2, [&](Communicator& ranks) {
    const TrainOutcome outcome =
        train_on(ranks,
                 decoder({"train.max_steps=10000000", "train.max_minutes=0.005",
                          "checkpoint.every_minutes=0.001", "train.log_every_steps=1000"}),
                 "timed");
    EXPECT_EQ(outcome.exit_code, 0);
    const std::vector<std::string> ends = ranks.all_gather_text(
        concat(outcome.progress.step, ' ', std::hexfloat, outcome.progress.seconds));
    EXPECT_EQ(ends[0], ends[1]);
  });
}

// An update that is skipped is skipped by all, whichever rank had the bad gradient.
TEST_F(DataParallelTraining, AllSkipTheSameUpdates) {
  pass_on_ranks(2, [&](Communicator& ranks) {
    const Recipe recipe = decoder({"train.tokens_per_update=96"});
    const std::unique_ptr<Task> task = make_task(recipe);
    const std::unique_ptr<Transformer> model = build_model(recipe, task->sizes());
    Job job(ranks);
    Updater updater = make_updater(recipe, model->parameters(), job);
    TrainStep step(recipe, *task, *model, updater, job);
    Progress progress;
    const auto next = [&] {
      const auto& [first, count] = step.micro_batches().front();
      return task->train_batch(first, count);
    };
    EXPECT_FALSE(step.run(progress, next).skipped);
    const Tensor weights = model->parameters().weights();
    const Tensor before = weights.clone();
    if (ranks.rank() == 1) weights.slice(0, {1}).fill(std::nan(""));
    const UpdateResult bad = step.run(progress, next);
    EXPECT_TRUE(bad.skipped);
    EXPECT_FALSE(bad.non_finite_parameter.empty());
    weights.copy_from(before);
    EXPECT_FALSE(step.run(progress, next).skipped);
    EXPECT_EQ(progress.skipped, 1);
  });
}

TEST_F(DataParallelTraining, RefusesRanksThatDiffer) {
  pass_on_ranks(2, [&](Communicator& ranks) {
    const bool other = ranks.rank() == 1;
    const auto refused = [&](const Recipe& recipe) {
      return test::message_of<UsageError>([&] { train_on(ranks, recipe, "refused"); });
    };
    EXPECT_EQ(refused(decoder({concat("optim.lr=", other ? 0.02 : 0.01)})),
              "rank 1 has another recipe than rank 0 ('optim.lr' differs); start all ranks alike");
    set_thread_count(other ? 2 : 1);
    EXPECT_EQ(refused(decoder()),
              "rank 1 has another thread count (2) than rank 0 (1); start all ranks alike");
    set_thread_count(1);
    EXPECT_THAT(refused(decoder({"train.tokens_per_update=80"})),
                HasSubstr("an update of 5 examples cannot be shared by 2 processes"));
    if (other) folder_.write("train0.txt", test::some_text(77, 55));
    const test::InFolder here(folder_.path());
    EXPECT_THAT(refused(recipe({"data.train=[train*.txt]", "data.validation=[]", "data.test=[]",
                                "evaluate.every_steps=0"})),
                HasSubstr("rank 1 has another data fingerprint"));
    EXPECT_FALSE(exists(shared("refused")));
  });
}

// Scores of three processes beside those of one.
TEST_F(DataParallelTraining, ThreeProcessesScoreAsOne) {
  const Recipe values = glue("STS-B", {"checkpoint.best=nll", "train.max_steps=2"});
  if (!is_rank()) {
    write_scores("STS-B/train.tsv", 50, true);
    write_scores("STS-B/dev.tsv", 25, true);
    run(decoder({"train.max_steps=2"}), "decoder");
    run(classifier({"train.max_steps=2"}), "classifier");
    run(values, "values");
  }
  EvaluateRequest windows, strided, streaming;
  windows.batch = strided.batch = 2;
  strided.stride = 5;
  streaming.carry_state = true;
  const std::vector<std::pair<std::string, EvaluateRequest>> asked = {{"decoder", windows},
                                                                      {"decoder", strided},
                                                                      {"decoder", streaming},
                                                                      {"classifier", windows},
                                                                      {"values", windows}};
  const auto scores_of = [&](Communicator* ranks) {
    std::vector<Score> scores;
    for (auto [name, request] : asked) {
      request.ranks = ranks;
      scores.push_back(evaluate(shared(name), request).scores.at(0));
    }
    return scores;
  };
  pass_on_ranks(3, [&](Communicator& ranks) {
    const std::vector<Score> together = scores_of(&ranks), one = scores_of(nullptr);
    for (size_t i = 0; i < one.size(); ++i) {
      const Score &a = one[i], &b = together[i];
      EXPECT_NEAR(b.nll_sum, a.nll_sum, 1e-9 * a.nll_sum) << i;
      EXPECT_EQ(b.tokens, a.tokens) << i;
      EXPECT_EQ(b.words, a.words) << i;
      EXPECT_EQ(b.bytes, a.bytes) << i;
      EXPECT_EQ(b.correct, a.correct) << i;
      EXPECT_EQ(b.confusion, a.confusion) << i;
      EXPECT_EQ(b.values.size(), a.values.size()) << i;
      if (!a.values.empty()) {
        EXPECT_NEAR(b.pearson(), a.pearson(), 1e-9) << i;
      }
    }
    EvaluateRequest file;
    file.ranks = &ranks;
    file.per_token = shared("tokens.h5");
    EXPECT_THAT(test::message_of<UsageError>([&] { evaluate(shared("decoder"), file); }),
                HasSubstr("is written by one process"));
  });
}

TEST_F(DataParallelTraining, ADryRunUpdatesOnAll) {
  pass_on_ranks(2, [&](Communicator& ranks) {
    TrainOptions options;
    options.out = shared("dry");
    options.ranks = &ranks;
    options.dry_run = true;
    for (const char* shares : {"false", "true"}) {
      const TrainOutcome outcome =
          train(decoder({concat("train.shard_optimizer=", shares)}), options);
      EXPECT_EQ(outcome.progress.step, 1);
      EXPECT_TRUE(outcome.dry_run.has_value());
    }
    EXPECT_FALSE(exists(shared("dry")));
  });
}

}  // namespace
}  // namespace linnet
