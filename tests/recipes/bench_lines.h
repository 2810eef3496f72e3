// Lines of 'linnet bench model', as it would write them.
#pragma once

#include <string>

#include "recipes/engine/model_bench.h"

namespace linnet::test {

// A fitting one of 100 parameters, outside of any table.
inline ModelBenchLine bench_line(const std::string& point, int64_t length, double seconds,
                                 size_t peak_bytes) {
  ModelBenchLine line;
  line.bench.recipe = "swept";
  line.bench.point = "mechanism=" + point;
  line.bench.attention = point;
  line.bench.precision = "f32";
  line.bench.length = length;
  line.bench.batch = 2;
  line.bench.parameters = 100;
  line.bench.seconds = seconds;
  line.bench.peak_bytes = peak_bytes;
  line.batch_given = 2;
  line.vocabulary = 256;
  line.device = "cpu";
  line.device_name = "Some Processor";
  line.date = "2026-01-31T23:59:59Z";
  line.commit = "abc";
  line.place = concat(point, "@", length);
  return line;
}

// In the paper's sizes of that table.
inline ModelBenchLine published_line(const std::string& table, const std::string& task,
                                     const std::string& model, int64_t length, double seconds,
                                     size_t peak_bytes) {
  ModelBenchLine line = bench_line(model, length, seconds, peak_bytes);
  line.bench.published = PublishedConfig();
  line.bench.published->table = table;
  line.bench.published->task = task;
  line.bench.published->model = model;
  line.bench.batch = table == "abc T6" ? 16 : 32;
  line.mode = table == "abc T6" ? BenchMode::inference : BenchMode::train;
  line.batch_given = line.bench.batch;
  line.vocabulary = table == "abc T6" ? 50265 : 256;
  return line;
}

}  // namespace linnet::test
