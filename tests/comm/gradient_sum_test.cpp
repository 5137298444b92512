#include "comm/gradient_averager.h"
#include "data/sampler.h"
#include "support/catch.h"

namespace mnist_train::comm {
namespace {

using Leaf = SummationTree::Leaf;

std::vector<std::int64_t> divided(std::int64_t shards, int ranks) {
  std::vector<std::int64_t> begins;
  for (int rank = 0; rank < ranks; ++rank) {
    begins.push_back(data::shard({0, shards}, rank, ranks).begin);
  }
  begins.push_back(shards);
  return begins;
}

/// Sums the shards as the ranks and their averager do.
at::Tensor summed(const std::vector<at::Tensor>& shards, int ranks) {
  const auto begins = divided(static_cast<std::int64_t>(shards.size()), ranks);
  const SummationTree tree(begins);
  std::vector<at::Tensor> given;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<at::Tensor> rows(tree.rows());
    for (at::Tensor& row : rows) row = at::full_like(shards.front(), 1e9);  // nothing may stay
    auto shard = static_cast<std::size_t>(begins[static_cast<std::size_t>(rank)]);
    for (const Leaf& leaf : tree.leaves(rank)) {
      rows[leaf.row].copy_(shards[shard++]);
      for (const RowSum& sum : leaf.then) rows[sum.to].add_(rows[sum.from]);
    }
    given.insert(given.end(), rows.begin(),
                 rows.begin() + static_cast<std::ptrdiff_t>(tree.rows_of_rank()));
  }
  if (tree.over_ranks().empty()) return given.front();
  add_up(given, tree.over_ranks(), given[1]);  // as on a rank whose row is not the first
  return given[1];
}

TEST_CASE("the sum of the shards has the same bits on any number of ranks") {
  for (std::int64_t count = 1; count <= 11; ++count) {
    std::vector<at::Tensor> shards;
    for (std::int64_t shard = 0; shard < count; ++shard) shards.push_back(at::randn({1000}));
    const at::Tensor expected = summed(shards, 1);
    at::Tensor in_turn = at::zeros_like(expected);
    for (const at::Tensor& shard : shards) in_turn += shard;
    CHECK(at::allclose(expected, in_turn, 1e-4, 1e-5));
    // So the order of a sum shows in its bits.
    CHECK(expected.equal(in_turn) == (count <= 3));
    for (int ranks = 1; ranks <= count; ++ranks) {
      INFO(count << " shards on " << ranks << " ranks");
      CHECK(summed(shards, ranks).equal(expected));
    }
  }
}

TEST_CASE("a rank adds up its own nodes and gives the rest to the others") {
  const SummationTree uneven({0, 2, 3, 4});
  CHECK((uneven.leaves(0) == std::vector<Leaf>{{0, {}}, {1, {{0, 1}}}}));
  CHECK((uneven.leaves(2) == std::vector<Leaf>{{0, {}}}));
  CHECK((uneven.over_ranks() == std::vector<RowSum>{{1, 2}, {0, 1}}));
  CHECK(uneven.rows_of_rank() == 1);
  CHECK(uneven.rows() == 2);

  // Of 8 shards the second of three ranks has 3, 4 and 5: two nodes.
  const SummationTree crossing({0, 3, 6, 8});
  CHECK(crossing.rows_of_rank() == 2);
  CHECK((crossing.leaves(1) == std::vector<Leaf>{{0, {}}, {1, {}}, {2, {{1, 2}}}}));
  CHECK((crossing.over_ranks() == std::vector<RowSum>{{1, 2}, {0, 1}, {3, 4}, {0, 3}}));
}

}  // namespace
}  // namespace mnist_train::comm
