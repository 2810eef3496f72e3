// A cache with places for tokens that a text is still to bring: the bits of a cache that grows.
#include "layers/cache_places.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/attention/made_mixer.h"

namespace linnet {
namespace {

constexpr int64_t kHeads = 3, kHeadWidth = 4;

AttentionMixer::MixResult read(const test::MadeMixer& mixer, int64_t first, int64_t tokens,
                               const MixerState& state) {
  const auto drawn = [&](const char* name) {
    return Variable(test::random_tensor({1, tokens, kHeads, kHeadWidth},
                                        concat(name, " of ", first), DType::f32));
  };
  MixerContext context;
  std::vector<int32_t> positions(static_cast<size_t>(tokens));
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(first));
  context.positions = Tensor::from(positions, {1, tokens});
  context.place.time_offset = first;
  return mixer.mix(drawn("q"), drawn("k"), drawn("v"), context, state);
}

test::MadeMixer made(const char* mechanism, const std::string& parameters) {
  MixerOptions options;
  options.width = kHeads * kHeadWidth;
  options.heads = kHeads;
  options.max_length = 32;
  return {mechanism, parameters, options, DType::f32};
}

TEST(CachePlaces, HaveTheBitsOfACacheThatGrows) {
  constexpr int64_t kPrompt = 5, kPlaces = 12;
  for (const char* parameters : {"{}", "{preset: t5}"}) {
    const test::MadeMixer mixer = made("softmax", parameters);
    MixerState growing = read(mixer, 0, kPrompt, {}).state, placed = growing;
    request_places(placed, kPlaces, {});
    for (int64_t t = kPrompt; t < kPlaces; ++t) {
      const auto grown = read(mixer, t, 1, growing), kept = read(mixer, t, 1, placed);
      EXPECT_TRUE(test::same_bits(kept.y.value(), grown.y.value())) << parameters << ", " << t;
      growing = grown.state;
      placed = kept.state;
      EXPECT_EQ(requested_places(placed), kPlaces);
      EXPECT_EQ(placed.at("k").shape(), Shape({1, kPlaces, kHeads, kHeadWidth}));
      const auto valid = placed.at("valid").value().to_vector<int64_t>();
      EXPECT_EQ(std::accumulate(valid.begin(), valid.end(), int64_t{0}), t + 1);
    }
    EXPECT_TRUE(test::same_bits(placed.at("k").value(), growing.at("k").value()));
    EXPECT_TRUE(test::same_bits(placed.at("v").value(), growing.at("v").value()));
    EXPECT_THROW(read(mixer, kPlaces, 1, placed), Error);
    request_places(placed, kPlaces + 3, {});
    EXPECT_TRUE(test::same_bits(read(mixer, kPlaces, 3, placed).y.value(),
                                read(mixer, kPlaces, 3, growing).y.value()))
        << "more places, several tokens";
  }
}

// Lists by position and chunks of summaries, which lie elsewhere with places than without.
TEST(CachePlaces, OfOtherMechanismsHaveTheBitsOfStatesThatGrow) {
  constexpr int64_t kPrompt = 5, kPlaces = 23;
  for (const auto& [mechanism, parameters] :
       {std::pair("yoso", "{}"),
        {"sparse_fixed", "{block: 3, columns: 1}"},
        {"synthesizer", "{}"},
        {"sparse_fixed", "{block: 6, columns: 2, layout: original, column_sets: 3}"},
        {"eva", "{window: 6, chunk: 3}"},
        {"eva", "{window: 4, chunk: 1, overlap: true}"},
        {"eva", "{window: 4, chunk: 4, overlap: true, distance_bias: true, norm: false}"}}) {
    SCOPED_TRACE(concat(mechanism, " ", parameters));
    const test::MadeMixer mixer = made(mechanism, parameters);
    MixerState growing = read(mixer, 0, kPrompt, {}).state, placed = growing;
    request_places(placed, 11, {});
    for (int64_t t = kPrompt; t < kPlaces; ++t) {
      if (t == 11) {
        EXPECT_THROW(read(mixer, t, 1, placed), Error);
        request_places(placed, kPlaces, {});
      }
      const auto grown = read(mixer, t, 1, growing), kept = read(mixer, t, 1, placed);
      EXPECT_TRUE(test::same_bits(kept.y.value(), grown.y.value())) << t;
      growing = grown.state;
      for (const auto& [name, entry] : kept.state) {
        const bool same = t == kPrompt || t == 11 || entry.shape() == placed.at(name).shape();
        EXPECT_TRUE(same) << name << ", " << t;
      }
      placed = kept.state;
      EXPECT_GT(requested_places(placed), t);
    }
  }
}

TEST(CachePlaces, AreLeftOutByMechanismsThatDoNotGiveThem) {
  const test::MadeMixer mixer = made("local", "{window: 4}");
  MixerState state = read(mixer, 0, 2, {}).state, asked = state;
  request_places(asked, 9, {});
  const auto expected = read(mixer, 2, 1, state), found = read(mixer, 2, 1, asked);
  EXPECT_TRUE(test::same_bits(found.y.value(), expected.y.value()));
  EXPECT_EQ(requested_places(found.state), 0);
  EXPECT_EQ(found.state.size(), expected.state.size());
}

}  // namespace
}  // namespace linnet
