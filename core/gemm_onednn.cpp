#include "core/gemm_onednn.h"

#ifdef LINNET_HAVE_ONEDNN

#include <map>
#include <tuple>
#include <unordered_map>

#include <oneapi/dnnl/dnnl.hpp>

#include "core/threads.h"

namespace linnet {
namespace {

dnnl::memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

struct Engine {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

Engine& engine() {
  static Engine shared;
  return shared;
}

// A primitive is made for a number of threads, the last of these.
using Key =
    std::tuple<int64_t, int64_t, int64_t, int64_t, Transpose, Transpose, DType, DType, bool, int>;

// A primitive and its operands, whose memory each call names.
struct Product {
  dnnl::matmul primitive;
  std::unordered_map<int, dnnl::memory> operands;
};

// A row-major [batch, rows, columns] operand, or its transpose read in place.
dnnl::memory::desc describe(int64_t batch, int64_t rows, int64_t columns, Transpose transpose,
                            DType dtype) {
  const auto tag =
      transpose == Transpose::yes ? dnnl::memory::format_tag::acb : dnnl::memory::format_tag::abc;
  return {{batch, rows, columns}, type_of(dtype), tag};
}

Product make_product(const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                     const dnnl::memory::desc& c, bool accumulate) {
  dnnl::primitive_attr attributes;
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc description(engine().engine, a, b, c, attributes);
#else
  const dnnl::matmul::primitive_desc description({a, b, c}, attributes, engine().engine);
#endif
  const auto operand = [](const dnnl::memory::desc& of) {
    return dnnl::memory(of, engine().engine, nullptr);
  };
  return {dnnl::matmul(description),
          {{DNNL_ARG_SRC, operand(a)}, {DNNL_ARG_WEIGHTS, operand(b)}, {DNNL_ARG_DST, operand(c)}}};
}

// Limit of cached shapes: sequences of ever new lengths must not collect primitives without end.
constexpr size_t kMaxProducts = 512;

// The product of this thread, made by make() where there is none.
template <typename Make>
Product& cached_product(const Key& key, const Make& make) {
  thread_local std::map<Key, Product> products;
  const auto found = products.find(key);
  if (found != products.end()) return found->second;
  if (products.size() >= kMaxProducts) products.clear();
  return products.emplace(key, make()).first->second;
}

}  // namespace

void onednn_sgemm(const float* a, Transpose ta, const float* b, Transpose tb, float* c, int64_t m,
                  int64_t n, int64_t k, float alpha, float beta) {
  const char op_a = ta == Transpose::yes ? 'T' : 'N';
  const char op_b = tb == Transpose::yes ? 'T' : 'N';
  const int64_t lda = ta == Transpose::yes ? m : k;
  const int64_t ldb = tb == Transpose::yes ? k : n;
  const dnnl_status_t status = dnnl_sgemm(op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, n);
  require(status == dnnl_success, "oneDNN sgemm failed with status ", static_cast<int>(status),
          " for m=", m, " n=", n, " k=", k);
}

void onednn_matmul(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb, const Tensor& c,
                   int64_t batch, int64_t m, int64_t n, int64_t k, bool accumulate) {
  const Key key(batch, m, n, k, ta, tb, a.dtype(), c.dtype(), accumulate, thread_count());
  Product& product = cached_product(key, [&] {
    return make_product(describe(batch, m, k, ta, a.dtype()), describe(batch, k, n, tb, b.dtype()),
                        describe(batch, m, n, Transpose::no, c.dtype()), accumulate);
  });
  product.operands.at(DNNL_ARG_SRC).set_data_handle(a.raw());
  product.operands.at(DNNL_ARG_WEIGHTS).set_data_handle(b.raw());
  product.operands.at(DNNL_ARG_DST).set_data_handle(c.raw());
  Engine& shared = engine();
  product.primitive.execute(shared.stream, product.operands);
  shared.stream.wait();
}

bool onednn_multiplies_bf16() {
  static const bool found = [] {
    const dnnl::memory::desc matrix = describe(1, 16, 16, Transpose::no, DType::bf16);
    try {
      make_product(matrix, matrix, matrix, false);
    } catch (const dnnl::error&) {
      return false;
    }
    return true;
  }();
  return found;
}

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return concat("oneDNN ", version->major, ".", version->minor, ".", version->patch);
}

}  // namespace linnet

#endif
