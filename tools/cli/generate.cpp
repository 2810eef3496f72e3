// linnet generate: text from a checkpoint.
#include <CLI/CLI.hpp>

#include "core/files.h"
#include "core/kernel_choice.h"
#include "core/log.h"
#include "core/row_products.h"
#include "data/id_tokenizer.h"
#include "layers/models.h"
#include "recipes/engine/packed_model.h"
#include "tools/cli/commands.h"
#include "tools/cli/generation.h"

namespace linnet::cli {
namespace {

constexpr int64_t kMaxSamples = 100'000;

// nullopt: no guesses.
std::optional<Speculation> speculation_of(const GenerateArguments& arguments) {
  if (!arguments.tree) return {};
  require_usage(arguments.accept == "typical" || arguments.accept == "exact",
                Cause{ErrorCode::unknown_name, "--accept"}, "--accept is typical or exact, got '",
                arguments.accept, "'");
  Speculation speculation{load_tree(*arguments.tree)};
  speculation.acceptance = arguments.accept == "exact" ? Acceptance::exact : Acceptance::typical;
  return speculation;
}

// What an option says that the recipe of the run has, too.
std::string or_of_run(const std::string& help, const std::string& key, auto otherwise) {
  return concat(help, "; without it generate.", key, " of the run's recipe (", otherwise,
                " unless set)");
}

int run(const GenerateArguments& arguments) {
  // Before a model is loaded.
  std::vector<Prompt> prompts = prompts_of(arguments);
  require_usage(!arguments.state || exists(*arguments.state),
                Cause{ErrorCode::not_found, "--state", arguments.state.value_or("")},
                "there is no file ", arguments.state.value_or(""), " for --state");
  std::optional<Speculation> speculation = speculation_of(arguments);
  const Device device = use_device(arguments.device);
  const UseKernels kernels(kernel_choice_from_name(arguments.backend), device);
  LoadedModel loaded = load_model(arguments.path, {}, device);
  loaded.model->token_head();  // classifiers are refused before they are asked for a tokenizer
  const ModelConfig& model = loaded.recipe.model;
  if (loaded.tokenizer == nullptr && kind_has_encoder(model.kind)) {
    loaded.tokenizer = make_id_tokenizer(static_cast<int32_t>(loaded.model->vocabulary()),
                                         static_cast<int32_t>(model.decoder_start));
  }
  require_usage(loaded.tokenizer != nullptr, Cause{ErrorCode::conflict, "", loaded.path},
                "checkpoint ", loaded.path, " is of data of kind ", loaded.recipe.data.kind,
                ", which have no text to continue; name a checkpoint of a language model of texts");
  log_info("checkpoint ", loaded.path, " (step ", loaded.step, ")");
  const auto packed = pack_weights(*loaded.model, weight_format_from_name(arguments.weights));
  const UsePackedWeights use(packed.get());
  generate_texts(arguments, std::move(prompts), std::move(speculation), loaded);
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, Command& chosen) {
  auto arguments = std::make_shared<GenerateArguments>();
  const SampleConfig unset;
  CLI::App* command = app.add_subcommand("generate", "continue a text with a checkpoint");
  command
      ->add_option("RUN_OR_CHECKPOINT", arguments->path,
                   "a run directory (its best checkpoint) or a checkpoint directory")
      ->required();
  CLI::Option* prompt = command->add_option(
      "--prompt", arguments->prompt,
      "text to continue; what the encoder of an encoder_decoder reads; of generated sequences "
      "(data.kind copy) ids: \"5 3 7\"");
  CLI::Option* file = command->add_option("--prompt-file", arguments->prompt_file,
                                          "a file whose whole text is continued");
  command
      ->add_option("--prompts", arguments->prompts,
                   "a file of prompts, one a line, empty lines left out; where its name ends in "
                   ".jsonl, and only there, objects with \"prompt\" and, if wanted, \"id\"")
      ->excludes(prompt)
      ->excludes(file);
  file->excludes(prompt);
  CLI::Option* samples = command->add_option("--n", arguments->samples, "samples of each prompt")
                             ->check(between(1, kMaxSamples));
  command
      ->add_option("--batch", arguments->batch,
                   "texts that share a pass of the model, 1 to 64; none changes another")
      ->capture_default_str()
      ->check(between(1, kMaxProductRows));
  command
      ->add_option(
          "--tokens", arguments->tokens,
          or_of_run("how many to generate, at most; 0: nothing is printed", "tokens", unset.tokens))
      ->check(between(0, kLongestSample));
  CLI::Option* stop = command
                          ->add_option("--stop", arguments->stop,
                                       "end before this text; may be given several times")
                          ->allow_extra_args(false);
  const std::vector<CLI::Option*> drawing = {
      samples,
      command->add_option(
          "--temperature", arguments->temperature,
          or_of_run("0 takes the most likely token", "temperature", unset.temperature)),
      command->add_option("--top-k", arguments->top_k,
                          or_of_run("keep the k most likely; 0: all", "top_k", unset.top_k)),
      command->add_option(
          "--top-p", arguments->top_p,
          or_of_run("keep the smallest set of this probability", "top_p", unset.top_p)),
      command->add_option(
          "--min-p", arguments->min_p,
          "keep tokens with at least this share of the most likely one's probability"),
      command->add_option("--repetition-penalty", arguments->repetition_penalty,
                          "divide positive logits of tokens that prompt or text have by this, "
                          "multiply others; what an encoder reads is not counted")};
  command
      ->add_option(
          "--seed", arguments->seed,
          "of the draws, 0 or more; without it generate.seed of the run's recipe, else its seed")
      ->check(at_least(0));
  command->add_option("--save-state", arguments->save_state,
                      "write the decode state after the prompt to this file");
  command->add_option("--state", arguments->state,
                      "go on from a state that --save-state wrote with the same checkpoint and "
                      "--weights");
  CLI::Option* tree = command->add_option(
      "--speculate", arguments->tree,
      "guess later tokens by the checkpoint's Medusa heads and take those that the model agrees "
      "with: a YAML file with 'chain: 4', or 'paths: [[0], [1], [0, 0]]', ranks of the heads' "
      "guesses behind each other, as 'linnet tree fit' writes it; or mc_sim_7b_63, Medusa's tree "
      "of "
      "63. Texts follow each other, and at temperature 0 are those without guesses");
  command
      ->add_option("--accept", arguments->accept,
                   "guesses that are taken at other temperatures: typical: those that the model "
                   "finds likely enough; exact: those that it draws, so that texts have the "
                   "distribution that they have without guesses")
      ->capture_default_str()
      ->needs(tree);
  CLI::Option* beams =
      command
          ->add_option("--beam", arguments->beams,
                       "search for the likeliest text instead of drawing one: so many beginnings "
                       "are kept, 1 to 64. Prompts share passes, as many as --batch and 64 beams "
                       "allow")
          ->check(between(1, kMaxProductRows))
          ->excludes(tree);
  for (CLI::Option* option : drawing) beams->excludes(option);
  beams->excludes(stop);
  command
      ->add_option(
          "--length-penalty", arguments->length_penalty,
          "the log-probability of a text of n tokens, its end included, is divided by n to "
          "this power: 0 prefers short texts, more longer ones")
      ->capture_default_str()
      ->needs(beams);
  command->add_flag("--json", arguments->json, "a JSON object on stdout for each continuation");
  command
      ->add_option("--weights", arguments->weights,
                   "what steps on the CPU read the weights in: f32, bf16 or int8 (with a scale per "
                   "row); they are rounded to it")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16", "int8"}));
  add_device_option(*command, arguments->device);
  add_backend_option(*command, arguments->backend);
  add_plugin_option(*command);
  add_threads_option(*command);
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace linnet::cli
