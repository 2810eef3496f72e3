// Descriptions of the engine's own recipe sections.
#include "recipes/engine/recipe_config.h"

#include "recipes/engine/pretrained_families.h"

namespace linnet {

void InitConfig::describe(ConfigDescription<InitConfig>& d) {
  d.field(
       "from", &InitConfig::from,
       "checkpoint, or run directory: its best checkpoint, else the newest; or the folder of a "
       "pretrained model; relative to the current folder; in a sweep, {point} in it is the folder "
       "of the point, so that every point begins from the same point of another sweep; --from "
       "of train sets it")
      .required();
  std::vector<std::string> maps{kLinnetMap};
  for (const PretrainedFamily& family : pretrained_families()) maps.emplace_back(family.name);
  d.field("map", &InitConfig::map,
          "layout of the weights there; linnet: a checkpoint of linnet, each parameter by its "
          "name; the others: config.json and model.safetensors of such a model")
      .choices(maps);
  d.choice("state", &InitConfig::state, {{"weights", InitState::weights}, {"all", InitState::all}},
           "what is taken over: weights only (the averaged ones where the run kept them), or all: "
           "optimizer and position, too, which needs the same seed, data and optimizer");
}

void InitConfig::validate(const ConfigNode& at) const {
  if (from.empty()) {
    throw located_error(at.location_of("from"), Cause{ErrorCode::out_of_range, "from"},
                        "'init.from' is empty; name a checkpoint or a run directory, or leave "
                        "'init' out");
  }
  if (map != kLinnetMap && state == InitState::all) {
    throw located_error(at.location_of("state"), Cause{ErrorCode::conflict, "state"},
                        "'init.state: all' needs a checkpoint of linnet, and 'init.map' is ", map,
                        "; leave 'state' out");
  }
}

void TrainConfig::describe(ConfigDescription<TrainConfig>& d) {
  d.optional("max_steps", &TrainConfig::max_steps,
             "stop after this many updates; 0: score and save the initial weights")
      .at_least(0);
  d.optional("max_tokens", &TrainConfig::max_tokens, "stop after this many target tokens")
      .at_least(0);
  d.optional("max_minutes", &TrainConfig::max_minutes, "stop after this much training time")
      .above(0)
      .unit("minutes");
  d.optional("max_epochs", &TrainConfig::max_epochs, "stop after this many passes over the data")
      .above(0);
  d.optional("tokens_per_update", &TrainConfig::tokens_per_update, "tokens in one update")
      .at_least(1)
      .unit("tokens");
  d.optional("examples_per_update", &TrainConfig::examples_per_update, "examples in one update")
      .at_least(1)
      .unit("examples");
  d.field("micro_batch", &TrainConfig::micro_batch,
          "examples that go through the model at once; changes nothing but rounding")
      .at_least(1)
      .unit("examples");
  d.choice("precision", &TrainConfig::precision,
           {{"f32", Precision::f32}, {"bf16", Precision::bf16}}, "storage of activations");
  d.choice("recompute", &TrainConfig::recompute,
           {{"none", Recompute::none}, {"block", Recompute::block}},
           "what the backward pass computes again instead of keeping");
  d.field("cuda_graph", &TrainConfig::cuda_graph,
          "on a CUDA device, capture updates once and replay them; changes nothing but speed");
  d.choice("backend", &TrainConfig::backend,
           {{"auto", KernelChoice::automatic},
            {"plain", KernelChoice::plain},
            {"tensor_cores", KernelChoice::tensor_cores},
            {"cudnn", KernelChoice::cudnn}},
           "kernels of attention on a CUDA device; tensor_cores refuses what these do not cover, "
           "where auto takes plain ones and says so; cudnn trains softmax attention alone, by "
           "cuDNN's deterministic kernels");
  d.choice("reduce", &TrainConfig::reduce, {{"f32", Precision::f32}, {"bf16", Precision::bf16}},
           "how several processes send gradients; bf16 halves the bytes and rounds them");
  d.field("bucket_mib", &TrainConfig::bucket_mib,
          "gradients that several processes sum at a time, while others are computed; changes "
          "nothing but speed")
      .above(0)
      .at_most(65'536)
      .unit("MiB");
  d.field("shard_optimizer", &TrainConfig::shard_optimizer,
          "of several processes, each keeps the optimizer's moments of its share of the "
          "parameters alone (ZeRO stage 1); gradients are then summed after they are computed");
  d.field("log_every_steps", &TrainConfig::log_every_steps, "updates between two training lines")
      .at_least(1)
      .unit("steps");
  d.field(
       "max_nonfinite_steps", &TrainConfig::max_nonfinite_steps,
       "stop when so many updates in a row had to be skipped for a NaN or infinite gradient; from "
       "the first on, a checkpoint from before is kept until a validation is finite again")
      .at_least(1)
      .unit("steps");
}

void TrainConfig::validate(const ConfigNode& at) const {
  const bool cudnn = backend == KernelChoice::cudnn;
  if ((cudnn || backend == KernelChoice::tensor_cores) && precision == Precision::f32) {
    throw located_error(at.location_of("backend"),
                        "'train.backend: ", cudnn ? "cudnn" : "tensor_cores",
                        "' needs 'train.precision: bf16', found f32; set that, or 'backend: auto'");
  }
  if (cudnn && recompute != Recompute::none) {
    // The first of both passes records no gradients.
    throw located_error(
        at.location_of("backend"),
        "'train.backend: cudnn' computes what gradients are recorded of, which "
        "'train.recompute: block' does only the second time; set 'recompute: none'");
  }
  if (!max_steps && !max_tokens && !max_minutes && !max_epochs) {
    throw located_error(at.location(), Cause{ErrorCode::missing_key, "max_steps"},
                        "'train' never stops; give max_steps, max_tokens, max_minutes or "
                        "max_epochs");
  }
  if (tokens_per_update.has_value() == examples_per_update.has_value()) {
    throw located_error(at.location_of("examples_per_update"),
                        "'train' needs either tokens_per_update or examples_per_update, found ",
                        tokens_per_update ? "both" : "neither");
  }
}

void ScoringProtocol::describe(ConfigDescription<ScoringProtocol>& d) {
  d.optional("context", &ScoringProtocol::context,
             "length of windows (with carry_state: of chunks); none: the training context")
      .range(1, kMaxTokensAtOnce)
      .unit("tokens");
  d.optional("stride", &ScoringProtocol::stride,
             "step of overlapping windows, each token scored once after context - stride tokens "
             "or more; none: windows do not overlap")
      .range(1, kMaxTokensAtOnce)
      .unit("tokens");
  d.field("carry_state", &ScoringProtocol::carry_state,
          "read whole documents with the state of the mechanism instead of windows");
}

void ScoringProtocol::validate(const ConfigNode& at) const {
  if (carry_state && stride) {
    throw located_error(at.location_of("stride"),
                        "'stride' and 'carry_state' of 'evaluate.protocols' exclude each other");
  }
  if (stride && context && *stride > *context) {
    throw located_error(at.location_of("stride"), Cause{ErrorCode::out_of_range},
                        "'stride' of 'evaluate.protocols' must be 1 to the context, ", *context,
                        ": found ", *stride);
  }
}

void EvaluateConfig::describe(ConfigDescription<EvaluateConfig>& d) {
  d.field("every_steps", &EvaluateConfig::every_steps, "updates between evaluations; 0: none")
      .at_least(0)
      .unit("steps");
  d.field("at_end", &EvaluateConfig::at_end, "evaluate when training ends");
  d.list("at_progress", &EvaluateConfig::at_progress,
         "evaluate as well once so much of train.max_steps or max_epochs is done, e.g. [20, 60, "
         "100]; the lines of metrics.jsonl say it as 'progress'")
      .range(1, 100)
      .unit("percent");
  d.field("split", &EvaluateConfig::split, "the part of the data that is scored");
  d.list("contexts", &EvaluateConfig::contexts,
         "context lengths to score with (with carry_state: lengths of chunks); empty: the training "
         "context")
      .range(1, kMaxTokensAtOnce)
      .unit("tokens");
  d.field("batch", &EvaluateConfig::batch, "windows or examples scored at once")
      .range(1, kMaxTokensAtOnce)
      .unit("examples");
  d.optional("stride", &EvaluateConfig::stride,
             "step of overlapping windows, each token scored once; none: windows do not overlap")
      .range(1, kMaxTokensAtOnce)
      .unit("tokens");
  d.field("carry_state", &EvaluateConfig::carry_state,
          "read whole documents with the state of the mechanism instead of windows");
  d.list("protocols", &EvaluateConfig::protocols,
         "several ways to score a text, instead of contexts, stride and carry_state; the first "
         "one's score chooses the best checkpoint");
  d.optional("max_tokens", &EvaluateConfig::max_tokens,
             "score at most this many; none: all; of a classifier, whole examples")
      .at_least(1)
      .unit("tokens");
  d.optional("best_on", &EvaluateConfig::best_on,
             "when training ends, score the best checkpoint (checkpoint.best) on this split as "
             "well, in the same way")
      .choices({"train", "validation", "test"});
}

void EvaluateConfig::validate(const ConfigNode& at) const {
  if (!protocols.empty() && (!contexts.empty() || stride || carry_state)) {
    const char* other = !contexts.empty() ? "contexts" : stride ? "stride" : "carry_state";
    throw located_error(at.location_of(other), Cause{ErrorCode::conflict, other}, "'evaluate.",
                        other,
                        "' and 'evaluate.protocols' exclude each other: say it in "
                        "'protocols', for each way to score");
  }
  if (carry_state && stride) {
    throw located_error(at.location_of("stride"),
                        "'evaluate.stride' and 'evaluate.carry_state' exclude each other");
  }
  for (const int64_t context : contexts) {
    if (stride && *stride > context) {
      throw located_error(at.location_of("stride"), Cause{ErrorCode::out_of_range},
                          "'evaluate.stride' must be 1 to the context, ", context, ": found ",
                          *stride);
    }
  }
}

void CheckpointConfig::describe(ConfigDescription<CheckpointConfig>& d) {
  d.field("every_steps", &CheckpointConfig::every_steps,
          "updates between checkpoints; 0: only when training stops")
      .at_least(0)
      .unit("steps");
  d.optional("every_minutes", &CheckpointConfig::every_minutes, "time between checkpoints")
      .above(0)
      .unit("minutes");
  d.field("keep", &CheckpointConfig::keep,
          "latest checkpoints kept; besides, the best one and the newest known to be sound")
      .range(1, 1'000'000);
  d.choice("best", &CheckpointConfig::best, {"nll", "accuracy", "none"},
           "validation figure that chooses the best checkpoint");
}

void SampleConfig::describe(ConfigDescription<SampleConfig>& d) {
  d.field("prompt", &SampleConfig::prompt, "text to continue");
  d.field("tokens", &SampleConfig::tokens, "length of the sample; 0: none")
      .range(0, kLongestSample)
      .unit("tokens");
  d.field("temperature", &SampleConfig::temperature, "0: always the most probable token")
      .at_least(0);
  d.field("top_k", &SampleConfig::top_k, "draw from this many tokens; 0: from all").at_least(0);
  d.field("top_p", &SampleConfig::top_p, "draw from the smallest set with this probability")
      .above(0)
      .at_most(1);
  d.optional("seed", &SampleConfig::seed, "seed of the draws; none: that of the recipe")
      .at_least(0);
}

}  // namespace linnet
