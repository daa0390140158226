// Gradient of maxk_spmm to kept values by blocks of rows. `T` is the type of features, `Column`
// that of their columns, `Edge` that of places of weights.
#include "edge_blocks.h"
#include "sums.h"

// A thread block a task, `most_held` rows of dy at a time in shared memory.
extern "C" __global__ void __launch_bounds__(1024) grad_values_blocks(PARAMETERS) {
  const EdgeBlocks graph{row_order,
                         entries,
                         edges,
                         blocks,
                         begins,
                         ends,
                         weights,
                         row_scale,
                         static_cast<int>(rows_per_block),
                         static_cast<int>(senders_per_span),
                         static_cast<int>(senders_per_tile),
                         static_cast<int>(num_rows)};
  float* sums = SUMS_OF_PARAMETERS;
  const int held_rows = static_cast<int>(most_held), width = static_cast<int>(k);
  const BlockTask task = graph.Task(blockIdx.x);
  if (task.begin >= task.end) return;
  const HeldRows held(shared, held_rows, static_cast<int>(dim), row_scale != nullptr);
  for (int first = 0; first < task.rows; first += held_rows) {
    const int64_t sender = task.first_sender;
    const int count = min(held_rows, task.rows - first);
    __syncthreads();
    held.Load(graph, dy, task.first_row + first, count);
    __syncthreads();
    const BlockRuns runs{graph, task,  held,  columns + sender * width, sums + sender * width,
                         width, first, count, prefetches != 0};
    for (int at = threadIdx.x % kLanes * 4; at < width; at += 4 * kLanes) runs.Run(at);
  }
}
