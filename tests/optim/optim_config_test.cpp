// The `optim` section: reading it, refusing options that its kinds do not use, writing it back.
#include "optim/optim_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/error_helpers.h"

namespace linnet {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

ConfigNode section(std::initializer_list<std::pair<const char*, const char*>> fields) {
  ConfigNode node = ConfigNode::map();
  for (const auto& [key, value] : fields) node.set(key, ConfigNode::scalar(value));
  return node;
}

ConfigNode optim_with_schedule(const ConfigNode& schedule) {
  ConfigNode node = section({{"kind", "adamw"}, {"lr", "5e-4"}});
  node.set("schedule", schedule);
  return node;
}

TEST(OptimConfig, ReadsAWholeSectionAndWritesItBack) {
  ConfigNode node = optim_with_schedule(
      section({{"kind", "cosine_cycles"}, {"warmup_steps", "10"}, {"period_steps", "100"}}));
  node.set("ema", section({{"decay", "0.99"}}));
  node.set("clip_norm", ConfigNode::scalar("0.1"));
  node.set("groups",
           ConfigNode::sequence({section({{"pattern", "*.norm.*"}, {"weight_decay", "0"}}),
                                 section({{"pattern", "embedding.*"}, {"lr_scale", "0.5"}})}));
  const OptimConfig config = parse_config<OptimConfig>(node);
  EXPECT_EQ(config.lr, 5e-4);
  EXPECT_EQ(config.schedule.kind, ScheduleKind::cosine_cycles);
  EXPECT_EQ(config.schedule.period_steps, 100);
  EXPECT_EQ(config.ema->decay, 0.99);
  ASSERT_EQ(config.groups.size(), 2u);
  EXPECT_EQ(config.groups[0].weight_decay, 0);
  EXPECT_FALSE(config.groups[0].lr_scale.has_value());
  const ConfigNode written = to_config_node(config);
  EXPECT_EQ(to_config_node(parse_config<OptimConfig>(written)), written);
  EXPECT_DOUBLE_EQ(make_schedule(config, 0).lr(10), 5e-4);
}

TEST(OptimConfig, RefusesOptionsOfOtherKinds) {
  const auto refuses = [](const ConfigNode& node, const char* sentence) {
    EXPECT_THAT([&] { parse_config<OptimConfig>(node); },
                ThrowsMessage<UsageError>(HasSubstr(sentence)));
  };
  refuses(section({{"kind", "adamw"}}), "lr");
  refuses(section({{"kind", "adamw"}, {"lr", "1"}, {"momentum", "0.99"}}),
          "optim.momentum is an option of sgd and nag");
  refuses(section({{"kind", "nag"}, {"lr", "1"}, {"eps", "1e-6"}}), "optim.eps is an option of");
  refuses(section({{"kind", "sgd"}, {"lr", "1"}, {"clip_norm", "1"}, {"clip_value", "1"}}),
          "choose one");
  refuses(optim_with_schedule(section({{"kind", "cosine"}, {"period_steps", "5"}})),
          "schedule.period_steps is an option of cosine_cycles");
  refuses(optim_with_schedule(section({{"kind", "constant"}, {"end_lr", "0"}})),
          "schedule.end_lr is an option of");
  refuses(optim_with_schedule(section({{"kind", "cosine_cycles"}})), "period_steps is missing");
  refuses(optim_with_schedule(section({{"kind", "inverse_sqrt"}})), "at least 1");
  const auto causes = [](const char* kind) {
    return test::causes_of<UsageError>([&] {
      parse_config<OptimConfig>(optim_with_schedule(section({{"kind", kind}})));
    });
  };
  EXPECT_EQ(causes("cosine_cycles"), "missing_key schedule.period_steps at (built in)");
  EXPECT_EQ(causes("inverse_sqrt"), "out_of_range schedule.warmup_steps at (built in)");
}

TEST(OptimConfig, MakesTheOptimizerOfItsKind) {
  OptimConfig config;
  config.weight_decay = 0.1;
  const std::vector<ParameterSpan> layout = {{"a.weight", 0, 3}, {"a.bias", 3, 4}};
  const auto names_of = [&](OptimizerKind kind) {
    config.kind = kind;
    std::vector<std::string> names;
    for (const auto& [name, tensor] : make_optimizer(config, layout, 4)->state()) {
      names.push_back(name);
    }
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names_of(OptimizerKind::adamw), (Names{"m", "updates", "v"}));
  EXPECT_EQ(names_of(OptimizerKind::adam), (Names{"m", "updates", "v"}));
  EXPECT_EQ(names_of(OptimizerKind::sgd), (Names{"momentum", "updates"}));
  EXPECT_EQ(names_of(OptimizerKind::nag), (Names{"momentum", "previous_lr", "updates"}));
  config.momentum = 0;
  EXPECT_EQ(names_of(OptimizerKind::sgd), (Names{"updates"}));
}

}  // namespace
}  // namespace linnet
