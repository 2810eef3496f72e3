// The list of exceptions names tests that there are: a renamed test would lose its bound.
#include "tests/bf16_exceptions.h"

#include <gmock/gmock.h>

#include <set>

namespace linnet {
namespace {

TEST(Bf16Exceptions, NameTestsOfThisProgram) {
  std::set<std::string> tests, named;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j)
      tests.insert(std::string(suite.name()) + "." + suite.GetTestInfo(j)->name());
  }
  for (const test::Bf16Exception& exception : test::bf16_exceptions()) named.insert(exception.test);
  EXPECT_THAT(tests, testing::IsSupersetOf(named));
}

}  // namespace
}  // namespace linnet
