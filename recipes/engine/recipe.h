// A recipe: one YAML file (and what it extends) that says everything about an experiment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "data/data_config.h"
#include "layers/model_config.h"
#include "layers/token_mixer.h"
#include "optim/optim_config.h"
#include "recipes/engine/published.h"
#include "recipes/engine/recipe_config.h"
#include "recipes/engine/recipe_merge.h"
#include "recipes/engine/task_config.h"

namespace linnet {

// The sections of a recipe.
struct Recipe {
  std::string name, description;
  int64_t seed = 1;
  std::optional<TaskConfig> task;  // empty: as the data have it
  DataConfig data;
  ModelConfig model;
  OptimConfig optim;
  std::optional<InitConfig> init;  // empty: freshly drawn weights
  TrainConfig train;
  EvaluateConfig evaluate;
  CheckpointConfig checkpoint;
  SampleConfig generate;
  ConfigNode sweep;
  std::optional<PublishedConfig> published;  // empty: it aims at none

  std::string path;     // the file that was loaded, "" for a recipe made from a node
  std::string point;    // the label of the sweep's point that it is, "" for none
  ConfigNode given;     // what was read, with the places of its keys
  ConfigNode resolved;  // every section with its defaults filled in; reads back to itself
  MixerFactory mixer;   // makes each layer's attention from the typed parameters of its mechanism

  static void describe(ConfigDescription<Recipe>& d);
  void validate(const ConfigNode& at) const;
};

// The recipe file with everything it extends merged and `overrides` ("key.path=value") applied, not
// yet checked. `extends` is a path relative to the file that names it (to the current folder for
// one that comes out of a pipe), in a chain of at most 8 files. Throws UsageError.
ConfigNode load_recipe_node(const std::string& path,
                            const std::vector<std::string>& overrides = {});

// load_recipe_node with what is left of the sweep: an override of a swept path, or of a section
// around it, replaces that part. Throws UsageError.
ConfigNode load_swept_node(const std::string& path, const std::vector<std::string>& overrides = {});

// Reads a merged node strictly, the attention mechanism's parameters and form included. Throws
// UsageError with one line for each problem.
Recipe parse_recipe(const ConfigNode& node);

// parse_recipe of it, with no section `published` where `overrides` change what a run measures.
Recipe load_recipe(const std::string& path, const std::vector<std::string>& overrides = {});

// One line of `linnet recipe list`.
struct RecipeListing {
  std::string path;
  std::string name;         // the file's name without .yaml unless the recipe gives one
  std::string description;  // "" unless the recipe gives one
  std::string error;        // why it cannot be read, "" if it can
};

// The recipes (*.yaml) below `folder`, sorted by path; those that cannot be read with the reason.
std::vector<RecipeListing> list_recipes(const std::string& folder);

// One combination of the values in a `sweep` section.
struct SweepPoint {
  std::string label;  // "attention=lavo,lr=0.001"
  std::string name;   // the label of its only labelled axis; "" where there is none, or several
  std::vector<Override> overrides;
};

// All combinations of the axes of a sweep (sweep_axis.h), the last axis varying fastest; one point
// without overrides when there is no sweep. Throws UsageError for other forms, for two points with
// the same label, for two axes that assign one path, and beyond 1000 points or 400,000 values of
// all points together.
std::vector<SweepPoint> sweep_points(const ConfigNode& sweep);

// A recipe at one point of its sweep.
struct RecipePoint {
  std::string label;  // "" where nothing is swept
  ConfigNode node;    // merged, everything assigned, without the sweep; not checked yet
};

// The recipe file at every point of its sweep, or alone where it has none. A point with a name has
// it for published.model, unless the recipe gives one. An override of a swept path, or of a section
// around it, replaces that part of the sweep; others go on top of the values of a point. Throws
// UsageError as load_recipe_node and sweep_points do.
std::vector<RecipePoint> load_recipe_points(const std::string& path,
                                            const std::vector<std::string>& overrides = {});

// The only recipe of the file, or the point of that label. Throws UsageError that lists the labels
// where the file has a sweep and no label is given, and for a label that it does not have.
RecipePoint load_recipe_point(const std::string& path, const std::vector<std::string>& overrides,
                              const std::string& label);

}  // namespace linnet
