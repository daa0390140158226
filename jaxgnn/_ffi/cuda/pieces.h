// A graph as kernels walk it: pieces of rows, longest first (jaxgnn/graph/plan/schedule.py). The
// type `Offset` is that of positions of edges.
#include "warp.h"

// At most edges_per_piece consecutive edges of one row.
struct Piece {
  int32_t row;
  int64_t begin, end;
  int64_t slot;  // where its partial sums go, or -1 if it is all of its row
};

// The pieces of one graph and the coefficients of its edges, each one where its array is null.
struct PieceGraph {
  const Offset *indptr, *unit_offsets;
  const int32_t *unit_rows, *pieces, *counts, *indices;
  const float *weights, *row_scale, *col_scale;
  int64_t edges_per_piece, num_rows, num_edges;

  // Partial sums of rows of several pieces. Full pieces lie apart by their length, so the quotient
  // of their first edge names them; what is left of such rows is named likewise.
  __device__ int64_t SlotsOfAKind() const { return num_edges / edges_per_piece + 1; }
  __device__ int64_t Slot(int64_t begin, int64_t end) const {
    const bool full = end - begin == edges_per_piece;
    return begin / edges_per_piece + (full ? 0 : SlotsOfAKind());
  }

  __device__ int64_t NumLong() const { return counts[0]; }
  __device__ int64_t NumPieces() const { return counts[1]; }

  __device__ Piece Get(int64_t number) const {
    const int32_t unit = pieces[number], row = unit_rows[unit];
    const int64_t begin = unit_offsets[unit];
    const int64_t row_begin = indptr[row], row_end = indptr[row + 1];
    const int64_t end = row_end - begin < edges_per_piece ? row_end : begin + edges_per_piece;
    const bool whole = row_end - row_begin <= edges_per_piece;
    return {row, begin, end, whole ? -1 : Slot(begin, end)};
  }

  __device__ float RowScale(int64_t row) const { return row_scale ? row_scale[row] : 1.0f; }
  __device__ float ColScale(int64_t column) const { return col_scale ? col_scale[column] : 1.0f; }
  __device__ float Weight(int64_t edge) const { return weights ? weights[edge] : 1.0f; }
};

// The graph of the parameters of a kernel (`_pieces` in jaxgnn/_ffi/spmm.py).
#define GRAPH_OF_PARAMETERS                                                                  \
  PieceGraph {                                                                               \
    indptr, unit_offsets, unit_rows, pieces, counts, indices, weights, row_scale, col_scale, \
        edges_per_piece, num_rows, num_edges                                                 \
  }
