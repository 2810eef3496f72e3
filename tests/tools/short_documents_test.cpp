// Documents of one byte, which have nothing to predict, from training to evaluation.
#include "core/json.h"
#include "tests/tools/cli.h"

namespace linnet {
namespace {

using test::Outcome;
using testing::HasSubstr;

class ShortDocuments : public test::Cli {
 protected:
  // Files of the folders `text` and `among`: the same texts, in `among` with documents of one byte
  // before, between and after them.
  void SetUp() override {
    Cli::SetUp();
    for (const char* name : {"a", "b", "c", "d"}) {
      const std::string text = read_file(folder_ / concat("text/", name, ".txt"));
      folder_.write(concat("among/", name, ".txt"), text);
      for (const char* more : {"0", "m", "z"}) {
        folder_.write(concat("among/", more, name, ".txt"), more);
        folder_.write(concat("among/", name, more, ".txt"), more);
      }
    }
  }
  // Training, validation and test files of that folder.
  static std::vector<std::string> data(const std::string& folder) {
    const auto files = [&](const std::string& names) {
      std::string list;
      for (const char name : names) {
        if (folder == "among") {
          for (const char more : std::string("0mz")) {
            list += concat(more, name, ".txt, ", name, more, ".txt, ");
          }
        }
        list += concat(name, ".txt, ");
      }
      return concat("[", list.substr(0, list.size() - 2), "]");
    };
    return {concat("data.path=", folder), concat("data.train=", files("ab")),
            concat("data.validation=", files("c")), concat("data.test=", files("d"))};
  }
  Outcome train(const std::string& folder, const std::string& run) {
    std::vector<std::string> arguments = {"train", "tiny.yaml", "--out", run};
    for (const std::string& override : data(folder)) arguments.push_back(override);
    return linnet(arguments);
  }
  // The scores of the test split of that folder.
  std::string scores(const std::string& folder, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"evaluate", "run", "--split", "test", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    for (const std::string& override : data(folder)) {
      arguments.insert(arguments.end(), {"--set", override});
    }
    const Outcome outcome = linnet(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    if (outcome.code != 0) return "";
    const JsonValue score = parse_json(outcome.out, "stdout").at("scores").elements().at(0);
    return concat(score.at("scored_tokens").integer(), " ", score.at("nll").dump());
  }
};

TEST_F(ShortDocuments, AreTrainedBesideOthersAndChangeNoScore) {
  const Outcome trained = train("among", "run");
  ASSERT_EQ(trained.code, 0) << trained.err;
  ASSERT_EQ(train("among", "again").code, 0);
  const std::string weights = "/checkpoints/step-00000004/weights.h5";
  EXPECT_EQ(read_file(folder_ / ("run" + weights)), read_file(folder_ / ("again" + weights)));
  for (const std::vector<std::string>& how :
       {std::vector<std::string>{}, {"--stride", "3"}, {"--carry-state"}}) {
    const std::string plain = scores("text", how);
    EXPECT_FALSE(plain.empty());
    EXPECT_EQ(scores("among", how), plain);
  }
}

// Nothing else to train on: one sentence, which the check has, too.
TEST_F(ShortDocuments, AloneAreRefused) {
  folder_.write("text/e.txt", "e");
  folder_.write("text/f.txt", "f");
  const std::vector<std::string> others = {"data.validation=[c.txt]", "data.test=[d.txt]"};
  for (const char* command : {"recipe", "train"}) {
    std::vector<std::string> arguments = {command};
    if (command == std::string("recipe")) arguments.push_back("check");
    arguments.insert(arguments.end(), {"tiny.yaml", "data.train=[e.txt, f.txt]", "data.context=1"});
    arguments.insert(arguments.end(), others.begin(), others.end());
    const Outcome outcome = linnet(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("nothing to predict: all its documents are of one token"));
  }
}

}  // namespace
}  // namespace linnet
