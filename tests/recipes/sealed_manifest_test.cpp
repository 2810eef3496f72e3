// Checkpoints of strangers: numbers of the manifest changed, and its hash with them.
#include "recipes/engine/evaluate.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::HasSubstr;

class SealedManifest : public test::TinyRun {
 protected:
  void SetUp() override {
    TinyRun::SetUp();
    run(recipe({"train.max_steps=2"}), "run");
    whole_ = load_checkpoint(CheckpointStore(out("run")).path_of(2));
  }
  // With one value of its metadata changed.
  void seal(const std::string& key, const JsonValue& value) const {
    JsonValue metadata = whole_.metadata;
    metadata.set(key, value);
    write_checkpoint_files(whole_.path, whole_.step, whole_.files, metadata);
  }
  std::string manifest() const { return whole_.path + "/manifest.json"; }
  Checkpoint whole_;
};

TEST_F(SealedManifest, CountsThatNoRunHasAreRefused) {
  for (const char* key : {"step", "examples", "tokens", "skipped", "skipped_in_a_row"}) {
    for (const int64_t value : {int64_t{-1}, INT64_MIN, INT64_MAX}) {
      seal(key, value);
      EXPECT_EQ(test::causes_of([&] { run(recipe(), "run"); }),
                concat("out_of_range ", key, " at ", manifest()));
    }
    seal(key, "many");
    EXPECT_EQ(test::causes_of([&] { run(recipe(), "run"); }), concat("wrong_type at ", manifest()));
  }
  seal("step", 1);
  EXPECT_EQ(test::causes_of([&] { run(recipe(), "run"); }),
            concat("conflict step at ", manifest()));
  for (const double value : {-1.0, std::nan("")}) {
    seal("seconds", value);
    EXPECT_EQ(test::causes_of([&] { run(recipe(), "run"); }),
              concat("out_of_range seconds at ", manifest()));
  }
  seal("evaluated", JsonValue::object());
  EXPECT_THAT(test::message_of([&] { run(recipe(), "run"); }), HasSubstr(manifest() + ": "));
}

TEST_F(SealedManifest, SizesOfAModelThatIsNotThereAreRefused) {
  for (const char* key : {"vocabulary", "length", "classes"}) {
    seal(key, int64_t{-1});
    EXPECT_EQ(test::causes_of([&] { evaluate(out("run"), {}); }),
              concat("out_of_range ", key, " at ", manifest()));
  }
  for (const int64_t vocabulary : {int64_t{0}, int64_t{255}, int64_t{257}, int64_t{1} << 50}) {
    seal("vocabulary", vocabulary);
    EXPECT_THROW(evaluate(out("run"), {}), Error) << vocabulary;
  }
}

}  // namespace
}  // namespace linnet
