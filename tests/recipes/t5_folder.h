// For tests: folders with a T5 of random weights.
#pragma once

#include "tests/recipes/pretrained_folder.h"

namespace linnet::test {

class T5Folder : public PretrainedRun {
 protected:
  // Two layers, three in the decoder, of width 8, as the published files name them.
  void write_t5(const std::string& folder, bool gated, const std::string& more = "",
                int64_t words = 11) const {
    std::vector<Layer> layers{{"shared.weight", {words, 8}}};
    const auto add = [&](const std::string& name, std::vector<int64_t> sizes) {
      layers.push_back({name + ".weight", std::move(sizes)});
    };
    for (const auto& [stack, count] : {std::pair("encoder", 2), {"decoder", 3}}) {
      const bool decoder = count == 3;
      for (int layer = 0; layer < count; ++layer) {
        const std::string block = concat(stack, ".block.", layer, ".layer.");
        const auto attention = [&](const std::string& name, int at) {
          for (const char* part : {"q", "k", "v", "o"}) {
            add(concat(block, at, ".", name, ".", part), {8, 8});
          }
          add(concat(block, at, ".layer_norm"), {8});
        };
        attention("SelfAttention", 0);
        if (layer == 0) add(block + "0.SelfAttention.relative_attention_bias", {32, 2});
        if (decoder) attention("EncDecAttention", 1);
        const std::string last = concat(block, decoder ? "2." : "1.");
        for (const char* part : gated ? std::vector{"wi_0", "wi_1"} : std::vector{"wi"}) {
          add(concat(last, "DenseReluDense.", part), {24, 8});
        }
        add(last + "DenseReluDense.wo", {8, 24});
        add(last + "layer_norm", {8});
      }
      add(concat(stack, ".final_layer_norm"), {8});
    }
    layers.push_back({"lm_head.weight", {words, 8}});
    write_model(folder, layers, config_json(gated ? "gated-gelu" : "relu", more, words));
  }
  static std::string config_json(const std::string& activation, const std::string& more = "",
                                 int64_t words = 11) {
    return concat(R"({"model_type": "t5", "d_model": 8, "d_kv": 4, "d_ff": 24, "num_layers": 2,
      "num_decoder_layers": 3, "num_heads": 2, "dropout_rate": 0.1,
      "decoder_start_token_id": 4, "vocab_size": )",
                  words, R"(, "feed_forward_proj": ")", activation, "\"", more, "}");
  }
};

}  // namespace linnet::test
