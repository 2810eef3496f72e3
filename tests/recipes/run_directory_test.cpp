// Run directories: new, empty or a run's; what is not a run's stays as it is.
#include "recipes/engine/run_directory.h"

#include <filesystem>

#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::ElementsAre;
using testing::StartsWith;

class RunDirectory : public test::TinyRun {
 protected:
  // Every file below a folder of out() with its contents.
  std::map<std::string, std::string> files_in(const std::string& name) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(out(name))) {
      files[entry.path()] = entry.is_directory() ? "" : read_file(entry.path());
    }
    return files;
  }
};

TEST_F(RunDirectory, AFolderWithOtherFilesIsRefusedAndStaysAsItIs) {
  const std::vector<std::vector<std::string>> folders = {
      {"recipe.yaml", "checkpoints/tmp-notes/a.txt"},
      {"notes.txt"},
      {"run.lock"},  // another program's
      {"environment.json"},
      {"checkpoints/step-00000004/weights.h5"},
      {"tensorboard/events.out.tfevents.1"},
  };
  for (const std::vector<std::string>& names : folders) {
    const std::string folder = concat("mine-", &names - folders.data());
    for (const std::string& name : names)
      folder_.write(folder + "/" + name, "{\"of\": \"a user\"}");
    const auto before = files_in(folder);
    for (const char* resume : {"auto", "never"}) {
      EXPECT_EQ(test::causes_of<UsageError>([&] { run(recipe(), folder, resume); }),
                concat("conflict --out at ", out(folder)))
          << names[0];
    }
    EXPECT_EQ(test::causes_of<UsageError>([&] {
                train(recipe(), {out(folder), "auto", {}, true});
              }),
              concat("conflict --out at ", out(folder)))
        << names[0];
    EXPECT_EQ(files_in(folder), before) << names[0];
  }
}

// Lock files of other programs are often empty; a trainer that was cut short while it wrote the
// mark left nothing else.
TEST_F(RunDirectory, AnUnfinishedMarkMarksNothing) {
  for (const char* cut : {"", "linnet-"}) {
    remove_all(out("mine"));
    folder_.write("mine/run.lock", cut);
    folder_.write("mine/recipe.yaml", "a user's");
    const auto before = files_in("mine");
    for (const char* resume : {"auto", "never"}) {
      EXPECT_EQ(test::causes_of<UsageError>([&] { run(recipe(), "mine", resume); }),
                concat("conflict --out at ", out("mine")));
    }
    EXPECT_EQ(files_in("mine"), before);
    file_system().remove(out("mine") + "/recipe.yaml");
    EXPECT_EQ(run(recipe({"train.max_steps=1"}), "mine").progress.step, 1);
    EXPECT_TRUE(is_run(out("mine")));
  }
}

TEST_F(RunDirectory, AnEmptyFolderAndOneOfRunsAreTaken) {
  const Recipe once = recipe({"train.max_steps=1"});
  create_directories(out("empty"));
  EXPECT_EQ(run(once, "empty").progress.step, 1);
  run(once, "points/lr=0.1");
  EXPECT_EQ(run(once, "points").progress.step, 1);
  EXPECT_EQ(CheckpointStore(out("points/lr=0.1")).steps(), std::vector<int64_t>{1});
}

TEST_F(RunDirectory, OnlyTemporariesOfTheRunAreDeleted) {
  run(recipe({"train.max_steps=2"}), "run");
  const std::string id = RunLock(out("run")).id(), checkpoints = out("run") + "/checkpoints";
  const std::vector<std::string> foreign = {"tmp-notes", "tmp-step-00000009", concat("tmp-", id),
                                            concat("tmp-", id, "-notes"),
                                            "tmp-0123456789abcdef-step-00000009"};
  for (const std::string& name : foreign)
    folder_.write(concat("run/checkpoints/", name, "/a"), "a");
  for (const char* name : {"step-00000009", "old-step-00000001", "old-abandoned-step-00000001"}) {
    folder_.write(concat("run/checkpoints/tmp-", id, "-", name, "/weights.h5"), "half");
  }
  folder_.write("run/tensorboard/notes.txt", "mine");
  run(recipe(), "run");
  for (const std::string& name : foreign) {
    EXPECT_EQ(read_file(join_path(join_path(checkpoints, name), "a")), "a");
  }
  EXPECT_EQ(read_file(out("run") + "/tensorboard/notes.txt"), "mine");
  for (const std::string& name : file_system().list(checkpoints)) {
    const bool ours = name.starts_with("step-") || name == "best.json";
    EXPECT_TRUE(ours || std::count(foreign.begin(), foreign.end(), name) == 1) << name;
  }
}

TEST_F(RunDirectory, RunsOfEarlierVersionsAreContinuedAndMarked) {
  run(recipe({"train.max_steps=2"}), "run");
  run(recipe({"train.max_steps=2"}), "unsaved");
  for (const char* name : {"run", "unsaved"}) remove_all(concat(out(name), "/run.lock"));
  remove_all(out("unsaved") + "/checkpoints");
  for (const char* name : {"run", "unsaved"}) {
    EXPECT_TRUE(is_run(out(name)));
    EXPECT_FALSE(is_marked_as_run(out(name)));
    EXPECT_EQ(run(recipe(), name).progress.step, 7);
    EXPECT_TRUE(is_marked_as_run(out(name)));
  }
  expect_equal(left("run"), left("unsaved"), "continued, and begun again");
}

TEST_F(RunDirectory, ARunThatBeganMeanwhileIsNotMixedWith) {
  { const RunLock finished(folder_.path()); }
  EXPECT_EQ(test::causes_of<UsageError>([&] { begin_run(folder_.path()); }),
            concat("conflict --out at ", folder_.path()));
  folder_.write("other/notes.txt", "mine");
  EXPECT_EQ(test::causes_of<UsageError>([&] { begin_run(out("other")); }),
            concat("conflict --out at ", out("other")));
}

TEST_F(RunDirectory, ANameIsPlain) {
  const std::string path = folder_.write("named.yaml", "name: good\nseed: 1\n");
  for (const std::string& name :
       {std::string("../x"), std::string("/x"), std::string(".."), std::string("."),
        std::string("a/b"), std::string(201, 'n'), std::string("\"a\\tb\"")}) {
    EXPECT_EQ(test::causes_of<UsageError>([&] { load_recipe_node(path, {"name=" + name}); }),
              "malformed name at command line: name")
        << name;
    EXPECT_EQ(test::causes_of<UsageError>([&] {
                load_recipe_points(path, {"sweep={name: [good, " + name + "]}"});
              }).substr(0, 14),
              "malformed name")
        << name;
  }
  for (const char* name : {"a", "...", "a b", "-a", "lm_2.5", "\"\""}) {
    EXPECT_NO_THROW(load_recipe_node(path, {concat("name=", name)})) << name;
  }
  const test::InFolder in(out("here"));
  const std::string causes = test::causes_of<UsageError>([&] {
    train(recipe({"name=../x"}), {"", "auto", {}, false});
  });
  EXPECT_THAT(causes, StartsWith("malformed name"));
  Recipe dots = recipe({"name=''", "train.max_steps=1"});
  dots.path = "...yaml";  // without .yaml it would be the parent folder
  EXPECT_EQ(train(dots, {"", "auto", {}, false}).run_directory, "runs/run");
  EXPECT_THAT(file_system().list("."), ElementsAre("runs"));
}

}  // namespace
}  // namespace linnet
