// Mechanisms that declare linear cost hold nothing of the size of T x T: forward and backward of
// one head over 65,536 tokens, with less memory than one bit per pair of tokens.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "attention/growth.h"
#include "attention/registry.h"
#include "core/device.h"
#include "core/sanitizers.h"
#include "tests/attention/cases.h"

namespace linnet {
namespace {

constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;
// Sanitizers, which are slow, watch the same loops on fewer tokens; memory is bounded without them.
constexpr int64_t kLength = kSanitized ? 8192 : 65536;
constexpr size_t kBitAPair = size_t{kLength} * kLength / 8;  // 512 MiB

// Bounds the memory that the process may take from the system beyond what it has, while this lives:
// half a byte per pair. Sanitizers reserve far more for themselves.
class AddressSpaceLimit {
 public:
  AddressSpaceLimit() {
    EXPECT_EQ(::getrlimit(RLIMIT_AS, &before_), 0);
    rlimit limit = before_;
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_cur, pages * page + 4 * kBitAPair);
    if (pages == 0 || kSanitized) return;
    EXPECT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
  }
  ~AddressSpaceLimit() { ::setrlimit(RLIMIT_AS, &before_); }
  AddressSpaceLimit(const AddressSpaceLimit&) = delete;
  AddressSpaceLimit& operator=(const AddressSpaceLimit&) = delete;

 private:
  rlimit before_{};
};

Tensor random_tensor(const Shape& shape, uint64_t site) {
  const Tensor result = Tensor::empty(shape);
  const RandomKey key{1, 0, site};
  for (int64_t i = 0; i < result.elements(); ++i) {
    result.data<float>()[i] = static_cast<float>(key.uniform(static_cast<uint64_t>(i)) - 0.5);
  }
  return result;
}

class LinearMemory : public testing::TestWithParam<test::MechanismForm> {};

TEST_P(LinearMemory, HoldsNoPairs) {
  const Mechanism& mechanism = find_mechanism(GetParam().mechanism);
  MixerOptions options;
  options.width = mechanism.check_head_width;
  options.heads = 1;
  options.form = GetParam().form;
  options.max_length = kLength;
  ParameterSet parameters;
  const ParameterScope root(parameters);
  const auto mixer =
      mechanism.make(ConfigNode::map(), options, {root.child("own"), root.child("tied")});
  parameters.materialize(1);
  const Variable x(random_tensor({1, kLength, options.width}, 1), true);
  const Tensor seed = random_tensor(x.shape(), 2);
  MixerContext context;
  context.positions = Tensor::empty({1, kLength}, DType::i32);
  for (int64_t i = 0; i < kLength; ++i) {
    context.positions.data<int32_t>()[i] = static_cast<int32_t>(i);
  }
  const AddressSpaceLimit limit;
  reset_peak_memory({});
  backward({mixer->forward(x, context, {}).y}, {seed});
  if (!kSanitized) {
    EXPECT_LT(peak_allocated_bytes({}), kBitAPair);
  }
  EXPECT_TRUE(x.grad().defined());
}

TEST(LinearMemoryLimit, RefusesAByteAPair) {
  if (kSanitized) GTEST_SKIP() << "sanitizers reserve more themselves";
  const AddressSpaceLimit limit;
  EXPECT_THROW(Tensor::empty({kLength, kLength}, DType::u8), OutOfMemory);
}

std::vector<test::MechanismForm> linear_forms() {
  std::vector<test::MechanismForm> forms;
  for (const test::MechanismForm& each : test::every_form()) {
    const bool linear = stated_growth(find_mechanism(each.mechanism).traits, each.form).power == 1;
    if (linear && each.form != Form::cross) forms.push_back(each);
  }
  return forms;
}

INSTANTIATE_TEST_SUITE_P(Registry, LinearMemory, testing::ValuesIn(linear_forms()),
                         [](const auto& info) { return info.param.name("cpu"); });

}  // namespace
}  // namespace linnet
