// The memory that a run needs at the least, compared with what its device has before it is asked
// for. These are lower bounds: what passes may still not fit, what is refused never would.
#pragma once

#include <string_view>

#include "layers/model.h"
#include "recipes/engine/recipe.h"

namespace linnet {

// What a model is built for: training adds the optimizer's state and the average.
enum class ModelUse { scoring, training };

// Throws UsageError, with what is needed and what is free, where `device` cannot hold a model that
// has names and shapes but no weights yet.
void require_model_memory(const Recipe& recipe, const Transformer& declared, Device device,
                          ModelUse use);

// The same for what an update of `rows` examples of `length` tokens at once needs beside a model
// that has its weights.
void require_update_memory(const Recipe& recipe, const Transformer& model, int64_t rows,
                           int64_t length);

// The same for scoring; `rows` are those of the recipe's evaluate.batch. A model without weights is
// not asked.
void require_scoring_memory(const Transformer& model, int64_t rows, int64_t length);

}  // namespace linnet
