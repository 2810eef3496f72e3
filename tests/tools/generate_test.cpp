// linnet generate: many prompts, samples, stop strings, states in files.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <sstream>

#include "core/json.h"
#include "tests/tools/cli.h"

namespace linnet {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class GenerateCommand : public test::Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    ASSERT_EQ(linnet({"train", "tiny.yaml", "--out", "run", "generate.tokens=0"}).code, 0);
  }
  // An encoder and a decoder of sequences of ids.
  void train_pairs(const std::vector<std::string>& more = {}) {
    const std::string data =
        "data={kind: copy, min_symbols: 1, vocabulary: 9, train_examples: 40, "
        "validation_examples: 8, test_examples: 8, context: 12}";
    const std::string model =
        "model={kind: encoder_decoder, head: table, layers: 1, width: 8, heads: 2, attention: "
        "{name: linear}}";
    std::vector<std::string> arguments = {"train",
                                          "tiny.yaml",
                                          "--out",
                                          "pairs",
                                          "generate.tokens=0",
                                          "checkpoint.best=accuracy",
                                          "train.tokens_per_update=48",
                                          data,
                                          model};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const test::Outcome trained = linnet(arguments);
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  // The JSON lines of a successful call.
  std::vector<JsonValue> lines(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"generate", "run", "--json"});
    const test::Outcome outcome = linnet(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::vector<JsonValue> result;
    std::istringstream text(outcome.out);
    for (std::string line; std::getline(text, line);) result.push_back(parse_json(line, "stdout"));
    return result;
  }
};

TEST_F(GenerateCommand, ContinuesEachPromptAsIfItWereAlone) {
  folder_.write("prompts.txt", "line 1\n\nline 22 of\n");
  folder_.write("prompts.jsonl", R"({"prompt": "line 22 of", "id": "b"})"
                                 "\n"
                                 R"({"id": 7, "prompt": "line 1"})"
                                 "\n");
  const auto both = lines({"--prompts", "prompts.txt", "--n", "2", "--tokens", "6"});
  ASSERT_EQ(both.size(), 4U);
  EXPECT_EQ(both[0].at("prompt").text(), "line 1");
  EXPECT_EQ(both[1].at("sample").integer(), 1);
  EXPECT_EQ(both[2].at("prompt").text(), "line 22 of");
  EXPECT_EQ(both[0].at("line").integer(), 1);
  EXPECT_EQ(both[2].at("line").integer(), 3) << "the file has an empty line";
  EXPECT_NE(both[0].at("tokens").dump(), both[1].at("tokens").dump());
  EXPECT_EQ(both[0].at("log_probabilities").size(), 6U);
  const auto turned = lines({"--prompts", "prompts.jsonl", "--tokens", "6"});
  ASSERT_EQ(turned.size(), 2U);
  EXPECT_EQ(turned[0].at("id").text(), "b");
  EXPECT_EQ(turned[1].at("line").integer(), 2);
  EXPECT_EQ(turned[1].at("id").integer(), 7);
  EXPECT_EQ(turned[0].at("text").text(), both[2].at("text").text());
  EXPECT_EQ(turned[1].at("text").text(), both[0].at("text").text());
  const auto alone = lines({"--prompt", "line 1", "--tokens", "6"});
  EXPECT_EQ(alone.at(0).at("log_probabilities").dump(), both[0].at("log_probabilities").dump());
  const test::Outcome text =
      linnet({"generate", "run", "--prompts", "prompts.txt", "--n", "2", "--tokens", "6"});
  EXPECT_THAT(text.out, StartsWith("--- prompt 1 of 2 (line 1), sample 1 of 2 ---\nline 1"));
  EXPECT_THAT(text.out, HasSubstr("\n--- prompt 2 of 2 (line 3), sample 2 of 2 ---\nline 22 of"));
  EXPECT_EQ(alone.at(0).find("line"), nullptr);
}

TEST_F(GenerateCommand, PrintsNothingOfNoTokens) {
  folder_.write("prompts.txt", "line 1\nline 22 of\n");
  for (const std::vector<std::string>& how :
       std::vector<std::vector<std::string>>{{"--prompt", "a"},
                                             {"--prompt", "a", "--n", "3"},
                                             {"--prompt", "a", "--json"},
                                             {"--prompt", "a", "--beam", "2", "--json"},
                                             {"--prompts", "prompts.txt"}}) {
    std::vector<std::string> arguments = {"generate", "run", "--tokens", "0"};
    arguments.insert(arguments.end(), how.begin(), how.end());
    const test::Outcome outcome = linnet(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr("no tokens were asked for: nothing is printed"));
  }
  const test::Outcome saved = linnet(
      {"generate", "run", "--tokens", "0", "--prompt", "a", "--json", "--save-state", "a.state"});
  EXPECT_EQ(saved.out, "");
  EXPECT_THAT(saved.err, HasSubstr("the state after 1 token is in a.state"));
}

TEST_F(GenerateCommand, EndsBeforeAStopString) {
  const std::vector<std::string> free = {"--prompt", "line 1", "--tokens", "40", "--seed", "2"};
  const std::string whole = lines(free).at(0).at("text").text();
  // A letter of the text itself, cut where it comes first.
  const auto letter = std::find_if(whole.begin() + 3, whole.end(),
                                   [](unsigned char c) { return std::isalpha(c) != 0; });
  ASSERT_NE(letter, whole.end());
  const std::string stop(1, *letter);
  std::vector<std::string> stopped = free;
  stopped.insert(stopped.end(), {"--stop", "never in the text", "--stop", stop});
  const JsonValue line = lines(stopped).at(0);
  EXPECT_EQ(line.at("text").text(), whole.substr(0, whole.find(stop)));
  EXPECT_LT(line.at("tokens").size(), 40U);
  stopped.insert(stopped.begin(), {"generate", "run"});
  EXPECT_EQ(linnet(stopped).out, "line 1" + line.at("text").text() + "\n");
}

TEST_F(GenerateCommand, GoesOnFromASavedState) {
  folder_.write("novel.txt", "line 1 of a small text\nline 2 of");
  const test::Outcome saved = linnet({"generate", "run", "--prompt-file", "novel.txt", "--tokens",
                                      "0", "--save-state", "novel.state"});
  EXPECT_EQ(saved.code, 0) << saved.err;
  EXPECT_THAT(saved.err, HasSubstr("the state after 32 tokens is in novel.state"));
  EXPECT_EQ(saved.out, "") << "no tokens were asked for";
  const auto whole = lines({"--prompt-file", "novel.txt", "--tokens", "12"});
  const auto continued = lines({"--state", "novel.state", "--tokens", "12"});
  EXPECT_EQ(continued.at(0).at("text").text(), whole.at(0).at("text").text());
  EXPECT_EQ(continued.at(0).at("prompt_tokens").integer(), 0);
  EXPECT_EQ(continued.at(0).at("state_tokens").integer(), 32);
  EXPECT_EQ(whole.at(0).find("state_tokens"), nullptr);
  // More prompts after the same beginning.
  folder_.write("ends.txt", " a\n b\n");
  const auto ends = lines({"--state", "novel.state", "--prompts", "ends.txt", "--tokens", "3"});
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(ends[0].at("prompt_tokens").integer(), 2);
  EXPECT_EQ(ends[0].at("state_tokens").integer(), 32);
  ASSERT_EQ(linnet({"train", "tiny.yaml", "--out", "other", "generate.tokens=0", "seed=9"}).code,
            0);
  expect_error({"generate", "other", "--state", "novel.state"}, 1, "was made with other weights");
  const std::string bytes = read_file(folder_ / "novel.state");
  write_file(folder_ / "cut.state", bytes.substr(0, bytes.size() - 5));
  expect_error({"generate", "run", "--state", "cut.state"}, 1, "cut.state");
  expect_error({"generate", "run", "--state", "none.state"}, 2, "none.state");
}

TEST_F(GenerateCommand, SearchesForTheLikeliestText) {
  const std::vector<std::string> one = {"--prompt", "line 1", "--tokens", "8", "--beam", "1"};
  const JsonValue found = lines(one).at(0);
  const JsonValue greedy =
      lines({"--prompt", "line 1", "--tokens", "8", "--temperature", "0"}).at(0);
  EXPECT_EQ(found.at("tokens").dump(), greedy.at("tokens").dump());
  // The score is of whole texts: the sum over the length to the power of the penalty.
  for (const auto& [penalty, power] : {std::pair("0", 0.0), {"1", 1.0}, {"2", 2.0}}) {
    const JsonValue line =
        lines({"--prompt", "line 1", "--tokens", "8", "--beam", "4", "--length-penalty", penalty})
            .at(0);
    double total = 0;
    for (const JsonValue& nats : line.at("log_probabilities").elements()) total += nats.number();
    const auto length = static_cast<double>(line.at("tokens").size());
    EXPECT_NEAR(line.at("score").number(), total / std::pow(length, power), 1e-9) << penalty;
  }
  const test::Outcome text =
      linnet({"generate", "run", "--prompt", "line 1", "--tokens", "8", "--beam", "1"});
  EXPECT_EQ(text.out, "line 1" + found.at("text").text() + "\n");
}

TEST_F(GenerateCommand, AnEncoderReadsThePrompt) {
  train_pairs();
  const test::Outcome greedy =
      linnet({"generate", "pairs", "--prompt", "5 3 7", "--tokens", "4", "--temperature", "0"});
  EXPECT_EQ(greedy.code, 0) << greedy.err;
  EXPECT_EQ(greedy.out.find_first_not_of("0123456789 \n"), std::string::npos) << greedy.out;
  const test::Outcome beam =
      linnet({"generate", "pairs", "--prompt", "5 3 7", "--tokens", "4", "--beam", "1"});
  EXPECT_EQ(beam.out, greedy.out);
  folder_.write("sources.txt", "5 3 7\n1\n");
  const test::Outcome both = linnet({"generate", "pairs", "--prompts", "sources.txt", "--tokens",
                                     "4", "--temperature", "0", "--json"});
  EXPECT_EQ(both.code, 0) << both.err;
  const JsonValue line = parse_json(both.out.substr(0, both.out.find('\n')), "stdout");
  EXPECT_EQ(line.at("text").text() + "\n", greedy.out);
  EXPECT_EQ(line.at("prompt_tokens").integer(), 3);
  const test::Outcome saved = linnet(
      {"generate", "pairs", "--prompt", "5 3 7", "--tokens", "0", "--save-state", "source.state"});
  EXPECT_EQ(saved.code, 0) << saved.err;
  EXPECT_THAT(saved.err, HasSubstr("the state after a source of 3 tokens is in source.state"));
  EXPECT_EQ(linnet({"generate", "pairs", "--state", "source.state", "--tokens", "4",
                    "--temperature", "0"})
                .out,
            greedy.out);
  expect_error({"generate", "pairs", "--state", "source.state", "--prompt", "1"}, 2,
               "the encoder has read its source");
  expect_error({"generate", "pairs", "--prompt", "5 9"}, 2, "'9' is no id");
  const test::Outcome beams = linnet(
      {"generate", "pairs", "--prompts", "sources.txt", "--tokens", "4", "--beam", "3", "--json"});
  EXPECT_EQ(beams.code, 0) << beams.err;
  EXPECT_THAT(beams.err, HasSubstr("2 texts in "));
  const JsonValue first = parse_json(beams.out.substr(0, beams.out.find('\n')), "stdout");
  const test::Outcome alone =
      linnet({"generate", "pairs", "--prompt", "5 3 7", "--tokens", "4", "--beam", "3", "--json"});
  EXPECT_THAT(alone.err, HasSubstr("1 text in "));
  for (const char* same : {"tokens", "log_probabilities", "score", "state_bytes"}) {
    EXPECT_EQ(first.at(same).dump(), parse_json(alone.out, "stdout").at(same).dump()) << same;
  }
  expect_error({"generate", "pairs", "--prompt", "five"}, 2, "'five' is no id");
}

TEST_F(GenerateCommand, NamesTheLineOfAWrongPrompt) {
  const test::Outcome trained =
      linnet({"train", "tiny.yaml", "--out", "learned", "model.positions=learned"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::string room = " positions that the model handles; ";
  folder_.write("long.jsonl", "{\"prompt\": \"a\"}\n\n{\"prompt\": \"more than sixteen bytes\"}\n");
  expect_error({"generate", "learned", "--prompts", "long.jsonl", "--tokens", "1"}, 2,
               "error: long.jsonl:3: generate: 23 tokens of prompt do not fit into the 16" + room +
                   "give a shorter prompt");
  folder_.write("long.txt", "more than sixteen bytes");
  expect_error({"generate", "learned", "--prompt-file", "long.txt"}, 2,
               "error: long.txt: generate");
  expect_error({"generate", "learned", "--prompt", "a", "--tokens", "17"}, 2,
               "error: generate: 1 token of prompt and 17 to follow do not fit into the 16" + room +
                   "ask for fewer tokens");
  train_pairs({"model.positions=learned"});
  folder_.write("ids.txt", "7\n7 x\n");
  expect_error({"generate", "pairs", "--prompts", "ids.txt"}, 2, "error: ids.txt:2: 'x' is no id");
  folder_.write("ids.txt", "1 2\n1 2 3 4 5 6 7 1 2 3 4 5 6 7\n");
  expect_error({"generate", "pairs", "--prompts", "ids.txt", "--tokens", "4"}, 2,
               "error: ids.txt:2: generate: 14 tokens of source do not fit into the 12" + room +
                   "give a shorter prompt");
  expect_error({"generate", "pairs", "--prompt", "1", "--tokens", "50"}, 2,
               "error: generate: 50 tokens do not fit into the 12" + room + "ask for fewer tokens");
}

TEST_F(GenerateCommand, TheHelpTellsWhereDefaultsComeFrom) {
  std::istringstream words(linnet({"generate", "--help"}).out);
  std::string help;
  for (std::string word; words >> word;) help += word + " ";
  for (const char* rule :
       {"generate.tokens of the run's recipe (200 unless set)",
        "generate.temperature of the run's recipe (1 unless set)",
        "generate.top_k of the run's recipe (0 unless set)",
        "generate.top_p of the run's recipe (1 unless set)", "generate.seed of the run's recipe"}) {
    EXPECT_THAT(help, HasSubstr(rule));
  }
}

TEST_F(GenerateCommand, SaysWhatIsWrongWithPrompts) {
  const auto refused = [&](const std::string& name, const std::string& text, int code,
                           const std::string& message) {
    folder_.write(name, text);
    expect_error({"generate", "run", "--prompts", name}, code, message);
  };
  refused("a.txt", "\n\n", 2, "a.txt has no prompts");
  refused("a.txt", "one\ntw\xffo\n", 2, "a.txt:2: is not valid UTF-8 at byte 2");
  refused("a.jsonl", "{\"prompt\": \"a\"}\n[1]\n", 2, "a.jsonl:2: expected an object");
  refused("a.jsonl", "{\"prompt\": 1}\n", 2, "a.jsonl:1: \"prompt\" must be text");
  refused("a.jsonl", "{\"id\": 1}\n", 2, "a.jsonl:1: the object has no \"prompt\"");
  refused("a.jsonl", "{\"prompt\": \"a\", \"promt\": 1}\n", 2, "nothing reads \"promt\"");
  refused("a.jsonl", "{\"prompt\": \"a\"\n", 2, "a.jsonl:1");
  folder_.write("two.txt", "a\nb\n");
  expect_error({"generate", "run", "--prompts", "two.txt", "--save-state", "s"}, 2,
               "--save-state keeps the state of one prompt, and there are 2");
  expect_error({"generate", "run", "--prompts", "two.txt", "--prompt", "a"}, 2, "excludes");
  expect_error({"generate", "run", "--prompts", "none.txt"}, 2, "none.txt");
  expect_error({"generate", "run", "--prompt-file", "none.txt"}, 2, "none.txt");
  folder_.write("bad.txt", "a\xff");
  expect_error({"generate", "run", "--prompt-file", "bad.txt"}, 2, "is not valid UTF-8");
  expect_error({"generate", "run", "--prompt", "a", "--stop", ""}, 2, "a stop string must");
  expect_error({"generate", "run", "--prompt", "a", "--stop", "\xff"}, 2, "a stop string: ");
  expect_error({"generate", "run", "--prompt", "a", "--min-p", "2"}, 2, "min-p must be");
  expect_error({"generate", "run", "--prompt", "a", "--repetition-penalty", "0"}, 2,
               "the repetition penalty must be above 0");
  expect_error({"generate", "run", "--prompt", "a", "--n", "0"}, 2, "--n");
}

}  // namespace
}  // namespace linnet
