// Tiny recipes on rows that are no running text: labelled texts, pairs, values, sequences.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/recipes/tiny_run.h"

namespace linnet::test {

class RowKinds : public TinyRun {
 protected:
  // The classifier of TinyRun on a folder of GLUE's files.
  Recipe glue(const std::string& task, std::vector<std::string> overrides = {}) const {
    overrides.insert(overrides.begin(),
                     {concat("data={kind: glue, path: ", folder_ / task, ", context: 16}"),
                      "model.token_types=2"});
    return classifier(overrides);
  }
  // Pairs of words as STS-B has them; the score counts the letters that they share.
  void write_scores(const std::string& name, int rows, bool labelled) const {
    static constexpr const char* kWords[] = {"aaaa", "aaab", "abbb", "bbbb", "aabb"};
    std::string table =
        labelled ? "index\tsentence1\tsentence2\tscore\n" : "index\tsentence1\tsentence2\n";
    for (int i = 0; i < rows; ++i) {
      const std::string a = kWords[i % 5], b = kWords[i / 5 % 5];
      int same = 0;
      for (size_t k = 0; k < 4; ++k) same += a[k] == b[k] ? 1 : 0;
      table += concat(i, "\t", a, "\t", b);
      table += labelled ? concat("\t", same + 1, ".000\n") : "\n";
    }
    folder_.write(name, table);
  }
  // The classifier on a table of texts of 1 to 35 bytes, padded to the longest of a batch.
  Recipe texts(std::vector<std::string> overrides = {}) const {
    for (const auto& [name, rows] : {std::pair("train", 40), {"dev", 20}, {"test", 10}}) {
      std::string table = "text\tlabel\n";
      for (int i = 0; i < rows; ++i)
        table += concat(std::string(1 + static_cast<size_t>(i * 9 % 35), i % 3 == 0 ? 'a' : 'b'),
                        i % 3 == 0 ? "\tgood\n" : "\tbad\n");
      folder_.write(concat("reviews/", name, ".tsv"), table);
    }
    overrides.insert(overrides.begin(), concat("data={kind: tsv, path: ", folder_ / "reviews",
                                               ", lengths: like, context: 48}"));
    return classifier(overrides);
  }
  // A masked language model on the texts of TinyRun, with rows of 14 words between CLS and SEP.
  Recipe masked(std::vector<std::string> overrides = {}) const {
    folder_.write("vocab.txt",
                  "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nold\nship\nsails\nover\na\nsea\nof\n"
                  "words\nand\nsand\nnow\n.\n");
    overrides.insert(
        overrides.begin(),
        {concat("data.tokenizer={kind: wordpiece, path: ", folder_ / "vocab.txt", "}"),
         "task={kind: masked_language_model, rate: 0.3}",
         "model={kind: encoder, head: masked_lm, layers: 2, width: 8, heads: 2, norm_position: "
         "post, embedding_norm: true, positions: learned, position_offset: 2, scale_embedding: "
         "false, attention: {name: softmax}}"});
    return recipe(overrides);
  }
  // One of each, by name, with dropout and micro-batches of two sizes.
  std::vector<std::pair<std::string, Recipe>> row_kinds(
      const std::vector<std::string>& overrides = {}) const {
    write_scores("STS-B/train.tsv", 50, true);
    write_scores("STS-B/dev.tsv", 25, true);
    const auto with = [&overrides](std::vector<std::string> changes) {
      changes.emplace_back("model.dropout=0.1");
      changes.insert(changes.end(), overrides.begin(), overrides.end());
      return changes;
    };
    return {
        {"listops", classifier(with({}))},
        {"texts", texts(with({}))},
        {"values", glue("STS-B", with({"checkpoint.best=nll"}))},
        {"typed_cls", glue("STS-B", with({"checkpoint.best=nll", "model.pooling=cls"}))},
        {"towers", pairs(with({}))},
        {"towers_cls", pairs(with({"model.pooling=cls"}))},
        {"towers_like", pairs(with({"data.lengths=like", "data.context=40"}))},
        {"recall", sequences(with({"train.micro_batch=4"}))},
        {"copy", sequences(with({"data={kind: copy, vocabulary: 9, train_examples: 25, "
                                 "validation_examples: 10, context: 16}",
                                 "train.micro_batch=4"}))},
        // Epochs of fewer examples than the seven updates have.
        {"masked", masked(with({"train.micro_batch=4"}))},
        {"masked_alone", masked(with({"train.micro_batch=4", "task.per_token=true"}))},
    };
  }
};

}  // namespace linnet::test
