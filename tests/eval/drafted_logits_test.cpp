#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "eval/evaluator.h"
#include "support/catch.h"

namespace mnist_train::eval {
namespace {

constexpr std::int64_t kClasses = 3;
constexpr float kByModel = 40;  // what the model writes into every logit

/// A model whose logits for an image, which is one number, are a row of a table.
class Table : public models::Model {
 public:
  explicit Table(at::Tensor rows) : rows_(std::move(rows)) {}

  at::Tensor forward(const at::Tensor& images) override {
    batches.push_back(images.size(0));
    types.push_back(images.scalar_type());
    return rows_.index_select(0, images.flatten().to(at::kLong)).to(images.scalar_type());
  }

  std::vector<std::int64_t> batches;
  std::vector<at::ScalarType> types;

 private:
  at::Tensor rows_;  // [samples,classes]
};

/// Returns images [n,1,1,1] that are the numbers from `begin` to `end` - 1.
at::Tensor numbered(std::int64_t begin, std::int64_t end) {
  return at::arange(begin, end, at::kFloat).view({-1, 1, 1, 1});
}

/// Returns rows of `kClasses` numbers.
at::Tensor table(const std::vector<float>& numbers) {
  return at::tensor(numbers).view({-1, kClasses});
}

TEST_CASE("the model computes what its draft does not clearly get right, and what is wanted") {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor drafted = table({
      3,    1,   0,    // clearly right
      0,    3,   0,    // clearly wrong
      0.75, 0,   0,    // right by less than one
      64,   57,  0,    // right by less than an eighth of the greatest
      64,   55,  0,    // clearly right
      kNan, 0,   0,    // no number
      8,    0,   0,    // clearly right, but wanted
      2,    0.5, -32,  // right by less than an eighth of what is greatest without its sign
  });
  const std::int64_t samples = drafted.size(0);
  Table draft(drafted);
  Table model(at::full({samples, kClasses}, kByModel));
  DraftedLogits logits(model, draft, /*batch_size=*/4);
  const at::Tensor labels = at::zeros({samples}, at::kLong);
  logits.add(numbered(0, 5), labels.narrow(0, 0, 5), {});
  CHECK(model.batches.empty());
  logits.add(numbered(5, samples), labels.narrow(0, 5, samples - 5), {{1, 2}});
  CHECK(model.batches == std::vector<std::int64_t>{4});
  const DraftedLogits::Result result = logits.take();
  CHECK(model.batches == std::vector<std::int64_t>{4, 2});
  CHECK(model.types.front() == at::kFloat);
  CHECK(draft.types == std::vector<at::ScalarType>(2, at::kBFloat16));
  REQUIRE(result.logits.size(0) == samples);
  CHECK(result.logits.scalar_type() == at::kFloat);
  CHECK(result.labels.equal(labels));
  for (const std::int64_t sample : {0, 4}) {
    INFO("sample " << sample);
    CHECK(result.logits[sample].equal(drafted[sample]));
  }
  for (const std::int64_t sample : {1, 2, 3, 5, 6, 7}) {
    INFO("sample " << sample);
    CHECK(result.logits[sample].eq(kByModel).all().item<bool>());
  }
}

TEST_CASE("drafted logits begin anew after each `take`") {
  Table draft(table({0, 9, 0, 9, 0, 0, 0, 0, 9}));
  Table model(at::full({3, kClasses}, kByModel));
  DraftedLogits logits(model, draft, /*batch_size=*/2);
  const at::Tensor labels = at::arange(3, at::kLong);
  logits.add(numbered(0, 2), labels.narrow(0, 0, 2), {});
  CHECK(logits.take().logits.eq(kByModel).all().item<bool>());
  logits.add(numbered(2, 3), labels.narrow(0, 2, 1), {});
  const DraftedLogits::Result result = logits.take();
  CHECK(result.logits.equal(table({0, 0, 9})));
  CHECK(result.labels.equal(labels.narrow(0, 2, 1)));
  CHECK(model.batches == std::vector<std::int64_t>{2});
}

}  // namespace
}  // namespace mnist_train::eval
