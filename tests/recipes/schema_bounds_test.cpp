// Every whole number of a recipe may be huge: it is refused at once, or does no harm.
#include <ctime>

#include "attention/registry.h"
#include "recipes/engine/environment.h"
#include "recipes/engine/recipe_check.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

// Of the processor.
constexpr double kSeconds = 1;

constexpr const char* kHuge[] = {"1000000000", "2147483648", "4611686018427387904",
                                 "9223372036854775807"};

// Dotted paths of the whole numbers below `fields`, those of lists with "[]" behind.
void find_numbers(const std::vector<FieldSchema>& fields, const std::string& section,
                  std::vector<std::string>& paths) {
  for (const FieldSchema& field : fields) {
    const std::string path = key_in(section, field.name);
    if (field.type == "whole number") paths.push_back(path);
    if (field.type == "list of whole number") paths.push_back(path + "[]");
    find_numbers(field.fields, path, paths);
  }
}

std::string assigned(std::string path, const std::string& value) {
  if (!path.ends_with("[]")) return concat(path, "=", value);
  path.resize(path.size() - 2);
  return concat(path, "=[", value, "]");
}

class SchemaBounds : public test::TinyRun {
 protected:
  // Runs `body`, which may throw UsageError and nothing else.
  template <typename Body>
  static void expect_quick(const std::string& what, const Body& body) {
    const std::clock_t start = std::clock();
    const uint64_t before = peak_resident_memory_bytes();
    try {
      body();
    } catch (const UsageError&) {
    } catch (const std::exception& error) {
      ADD_FAILURE() << what << ": " << error.what();
    }
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, kSeconds) << what;
    EXPECT_LT(peak_resident_memory_bytes() - before, uint64_t{64} << 20) << what;
  }
};

// What a key needs beside it to be read at all.
std::vector<std::string> companions(const std::string& path) {
  if (path == "model.max_positions") return {"model.positions=learned"};
  if (path.starts_with("model.cutoff") || path == "model.head_dropout") {
    return {"model.embedding=adaptive", "model.cutoffs=[100, 200]"};
  }
  if (path == "train.examples_per_update") return {"train.tokens_per_update=null"};
  if (path == "train.micro_batch") return {"train.tokens_per_update=16000000000"};
  if (path == "evaluate.stride") return {"evaluate.contexts=[1000000000]"};
  if (path == "data.tokenizer.vocabulary_size") return {"data.tokenizer.kind=word"};
  if (path == "optim.schedule.steps") return {"optim.schedule.kind=cosine"};
  if (path == "optim.schedule.period_steps") return {"optim.schedule.kind=cosine_cycles"};
  if (path == "optim.schedule.cycles") {
    return {"optim.schedule={kind: cosine_cycles, period_steps: 1}"};
  }
  return {};
}

TEST_F(SchemaBounds, HugeNumbersAreRefusedOrHarmless) {
  std::vector<std::string> paths;
  find_numbers(schema_of<Recipe>().fields, "", paths);
  ASSERT_GT(paths.size(), 35u);
  for (const std::string& path : paths) {
    for (const char* value : kHuge) {
      std::vector<std::string> changes = companions(path);
      changes.push_back(assigned(path, value));
      if (path != "train.max_steps") changes.push_back("train.max_steps=1");
      const bool labelled = path.starts_with("data.listops") || path == "model.head_width";
      expect_quick(assigned(path, value), [&] {
        const Recipe given = labelled ? classifier(changes) : recipe(changes);
        check_run(given);
        train(given, {out("run"), "never", {}, true});
      });
    }
  }
}

TEST_F(SchemaBounds, SoAreThoseOfMechanisms) {
  for (const Mechanism& mechanism : mechanisms()) {
    std::vector<std::string> paths;
    find_numbers(mechanism.schema().fields, "", paths);
    for (const std::string& path : paths) {
      for (const char* value : kHuge) {
        const std::string change = concat("model.attention={name: ", mechanism.name, "}");
        const std::string number = assigned("model.attention." + path, value);
        expect_quick(mechanism.name + ": " + number, [&] {
          const Recipe given =
              mechanism.traits.causal ? recipe({change, number}) : classifier({change, number});
          check_run(given);
          train(given, {out("run"), "never", {}, true});
        });
      }
    }
  }
}

// Each within its range, together beyond any memory.
TEST_F(SchemaBounds, WhatDoesNotFitIsRefusedBeforeItIsAskedFor) {
  const auto refusal = [&](const Recipe& given) {
    std::string causes;
    expect_quick("a run that does not fit", [&] {
      causes = test::causes_of<UsageError>([&] { train(given, {out("run"), "auto", {}, false}); });
    });
    EXPECT_FALSE(exists(out("run")));
    return causes.substr(0, causes.find(" at "));
  };
  EXPECT_EQ(refusal(recipe(
                {"model.width=65536", "model.layers=1000", "model.feed_forward_width=1048576"})),
            "out_of_range model");
  EXPECT_EQ(refusal(recipe({"model.positions=learned", "model.max_positions=16777216",
                            "model.width=65536", "model.layers=1"})),
            "out_of_range model");
  EXPECT_EQ(refusal(classifier(
                {"model.attention={name: linformer, slots: 65536, max_length: 16777216}"})),
            "out_of_range model");
  EXPECT_EQ(
      refusal(recipe({"train.micro_batch=1000000000", "train.tokens_per_update=16000000000"})),
      "out_of_range train.micro_batch");
  EXPECT_EQ(refusal(classifier({"data.listops={min_length: 16777216, max_length: 16777216, "
                                "train_examples: 10000000}"})),
            "out_of_range data.listops");
}

}  // namespace
}  // namespace linnet
