// For tests of `linnet attention run`: CASE.h5 files for any mechanism, and what comes out.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "attention/case.h"
#include "attention/registry.h"
#include "core/hdf5.h"
#include "tests/error_helpers.h"
#include "tests/worst.h"

namespace linnet::test {

constexpr int64_t kRows = 2, kLength = 21, kSource = 6, kWidth = 16, kHeads = 2;

// Enough for every mechanism at heads of 8.
inline std::string options_for(const std::string& mechanism) {
  if (mechanism == "lavo") return ", rank: 6, window: 5";
  if (mechanism == "abc_mlp") return ", slots: 4";
  if (mechanism == "flash_global") return ", group: 5";  // its first group reads nothing
  return "";
}

inline Tensor draw(const Shape& shape, const std::string& name) {
  const Tensor result = Tensor::empty(shape, DType::f64);
  const RandomKey key = RandomKey{5, 0, 0}.at(name);
  for (int64_t i = 0; i < result.elements(); ++i) {
    result.data<double>()[i] = 0.5 * key.normal(static_cast<uint64_t>(i));
  }
  return result;
}

struct CaseFile {
  std::map<std::string, Tensor> tensors;
  std::string mechanism, form, config;
  int64_t core = 0, seed = 0, max_length = 64;

  std::string image() const {
    Hdf5Writer writer;
    for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
    writer.set_attribute("/", "mechanism", mechanism);
    writer.set_attribute("/", "form", form);
    writer.set_attribute("/", "config", config);
    writer.set_attribute("/", "core", core);
    writer.set_attribute("/", "seed", seed);
    writer.set_attribute("/", "max_length", max_length);
    return writer.finish();
  }
};

inline CaseFile make_case(const Mechanism& mechanism, Form form) {
  CaseFile file;
  file.mechanism = mechanism.name;
  file.form = name_of(form);
  file.config = concat("{width: ", kWidth, ", heads: ", kHeads, options_for(mechanism.name), "}");
  file.tensors["inputs/x"] = draw({kRows, kLength, kWidth}, "x");
  file.tensors["cotangent"] = draw({kRows, kLength, kWidth}, "dy");
  if (form == Form::cross) file.tensors["inputs/source"] = draw({kRows, kSource, kWidth}, "source");
  const Tensor mask = Tensor::full({kRows, kLength}, 1, DType::u8);
  mask.data<uint8_t>()[kLength - 1] = 0;
  file.tensors["inputs/mask"] = mask;
  ParameterSet set;
  const ParameterScope root(set);
  MixerOptions options;
  options.width = kWidth;
  options.heads = kHeads;
  options.form = form;
  options.max_length = 64;
  ConfigNode parameters = ConfigNode::map();
  if (mechanism.name == "lavo") {
    parameters.set("rank", ConfigNode::integer(6));
    parameters.set("window", ConfigNode::integer(5));
  }
  if (mechanism.name == "abc_mlp") parameters.set("slots", ConfigNode::integer(4));
  mechanism.make(parameters, options, {root.child("own"), root.child("tied")});
  for (const ParameterSet::Entry& entry : set.entries()) {
    const std::string name = entry.name.substr(entry.name.find('.') + 1);
    file.tensors["params/" + name] = draw(entry.shape, name);
  }
  return file;
}

inline std::map<std::string, Tensor> run(const CaseFile& file, CaseMode mode,
                                         DType dtype = DType::f64) {
  CaseOptions options;
  options.dtype = dtype;
  options.mode = mode;
  options.chunk = 4;
  return tensors_from_hdf5(run_case(file.image(), "CASE.h5", options), "OUT.h5");
}

inline double difference(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.shape(), b.shape());
  const std::vector<double> left = a.to_vector<double>(), right = b.to_vector<double>();
  double largest = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    keep_worst(largest, std::abs(left[i] - right[i]));
  }
  return largest;
}

inline void expect_equal(const std::map<std::string, Tensor>& a,
                         const std::map<std::string, Tensor>& b, double allowed,
                         const std::string& what) {
  for (const auto& [name, tensor] : b) {
    ASSERT_TRUE(a.contains(name)) << what << " lacks " << name;
    EXPECT_LE(difference(a.at(name), tensor), allowed) << what << " " << name;
  }
  EXPECT_EQ(a.size(), b.size()) << what;
}

template <typename Body>
std::string causes(const Body& body) {
  return causes_of<UsageError>(body);
}

inline std::string refusal(const CaseFile& file, CaseMode mode = CaseMode::parallel) {
  try {
    run(file, mode);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace linnet::test
