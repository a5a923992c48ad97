#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "trainer/models/model_config.h"

// The layout of a model's parameters in flat buffers. A unit is a set of parameters that is gathered together: the
// embedding, each decoder block, the final norm with the lm_head; with tied embeddings, embedding, final norm and head
// are one unit.
namespace distill::models {

// Rows [first_row, first_row + rows) of a fused parameter are the Hugging Face tensor `hf_name`.
struct ParamPart {
  std::string hf_name;
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t stacked = 1; // the tensor has a further dimension, of so many matrices that are one below the other here
  // The parameter's groups lie side by side in the tensor, and their columns are interleaved: element (row, column) of
  // group g is (row, column * groups + g) there.
  bool groups_last = false;
};

// Where the product of an adapter's B is added.
struct AdapterPlace {
  int64_t first_row = 0; // of the adapted product
  double scale = 0;
};

struct ParamLayout {
  std::string name; // within the unit: "qkv", "down", "attn_norm", ...
  std::vector<int64_t> shape;
  int64_t offset = 0; // elements from the unit's start; a multiple of kParamAlignment. Of a packed unit: bytes
  bool is_matrix = false; // weight decay applies
  bool drawn = false; // a model without weights draws it at random
  double initial = 0; // of a model without weights, where it is not drawn: the value of its elements
  bool trained = true; // false: it has no gradient and stays as it is
  bool may_be_float8 = false; // a matrix product of a block that float8 may round
  // Matrices that are one below the other, of equally many rows: those of the experts. A token multiplies only
  // `groups_per_token` of them.
  int64_t groups = 1;
  int64_t groups_per_token = 1;
  std::vector<ParamPart> parts;
  std::optional<AdapterPlace> adapter; // of an adapter's B
  std::optional<at::ScalarType> stored; // of a packed unit (packed_layout.h); nullopt: the flat buffer's dtype

  int64_t numel() const;
  int64_t group_rows() const {
    return shape.front() / groups;
  }
  // Elements with which a token is multiplied.
  int64_t active_numel() const {
    return numel() / groups * groups_per_token;
  }
};

enum class UnitKind {
  kEmbedding,
  kBlock,
  kHead,
  kTiedEmbeddingHead
};

struct UnitLayout {
  std::string name; // "embedding", "block 3", "head"
  UnitKind kind = UnitKind::kBlock;
  int64_t block = -1; // index of a decoder block
  int64_t numel = 0; // elements including alignment gaps; vectors first, then matrices. Of a packed unit: bytes
  std::vector<ParamLayout> params;

  bool packed() const {
    return !params.empty() && params.front().stored.has_value();
  }

  const ParamLayout* find(std::string_view param) const; // null: no such parameter
  // Returns a view of one parameter in a flat buffer [numel or more] of any dtype; undefined if the unit has no such
  // parameter.
  at::Tensor view(const at::Tensor& flat, std::string_view param) const;
};

// Parameters start at multiples of this number of elements. It is 128 bytes in bf16, so that every start is aligned in
// each dtype.
inline constexpr int64_t kParamAlignment = 64;

// A float8 matrix "down" of a packed unit has its scales in "down.scale".
inline constexpr const char* kScaleSuffix = ".scale";

// Appends a parameter to a unit. Matrices have two dimensions.
void add_param(
    UnitLayout& unit, std::string name, std::vector<int64_t> shape, std::vector<ParamPart> parts, double initial = 0);

// Returns the unit of a decoder block.
UnitLayout block_layout(const ModelConfig& config, int64_t block);

// Returns the names of the matrix products of each block that may run in float8, in the order of its layout.
BlockProducts block_products(const ModelConfig& config);

// Lists all units of a model in forward order: [embedding, block 0.., head], or [tied, block 0..].
std::vector<UnitLayout> unit_layouts(const ModelConfig& config);

// Counts the parameters of the whole model, alignment gaps left out.
int64_t parameter_count(const std::vector<UnitLayout>& layouts);
// Counts those of them with which each token is computed: of experts, as many as a token visits.
int64_t active_parameter_count(const std::vector<UnitLayout>& layouts);

// Returns the shape of the Hugging Face tensor: the parameter's shape, with the part's number of rows, or stacked, or
// with its groups side by side.
std::vector<int64_t> part_shape(const ParamLayout& param, const ParamPart& part);

// Returns the elements of a tensor whose part has groups_last, in the order of the parameter; and back.
at::Tensor rows_of_groups(const ParamLayout& param, const at::Tensor& tensor);
at::Tensor groups_last(const ParamLayout& param, const at::Tensor& rows);

// The elements [tensor_begin, tensor_begin + count) of one Hugging Face tensor, which lie at flat_begin of the flat
// buffer. Of a part with groups_last they are counted in the parameter's order (rows_of_groups).
struct FlatPiece {
  const ParamLayout* param = nullptr;
  const ParamPart* part = nullptr;
  int64_t tensor_begin = 0;
  int64_t flat_begin = 0;
  int64_t count = 0;
};

// Lists the pieces of Hugging Face tensors in elements [begin, end) of the unit's flat buffer, in order; alignment gaps
// are left out.
std::vector<FlatPiece> flat_pieces(const UnitLayout& layout, int64_t begin, int64_t end);

} // namespace distill::models
