/* queens.c - counts the ways to place N queens on a board of N by N squares so that no queen attacks another.
 *
 *     mpicc -O2 -o queens queens.c
 *     mpirun -n 4 ./queens 14
 *
 * A task is a placement of the queens in the first two rows. Rank 0 gives tasks to the ranks that ask for one, and solves
 * tasks itself while none asks. So it also runs with one rank. It compares the result with the known number. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ASK = 1, TASK };
enum { LARGEST = 20 };

/* Known numbers of solutions, by N (OEIS A000170). */
static const long long known[LARGEST + 1] = {
    1, 1, 0, 0, 2, 10, 4, 40, 92, 352, 724, 2680, 14200, 73712, 365596, 2279184, 14772512, 95815104,
    666090624, 4968057848LL, 39029188884LL,
};

/* solve counts the ways to fill the rest of a board. A bit of taken, left and right is a column that a queen attacks along the
 * column and along the two diagonals. */
static long long solve(unsigned all, unsigned taken, unsigned left, unsigned right)
{
    if (taken == all)
        return 1;
    long long found = 0;
    for (unsigned open = all & ~(taken | left | right); open; open &= open - 1) {
        unsigned queen = open & -open;
        found += solve(all, taken | queen, (left | queen) << 1, (right | queen) >> 1);
    }
    return found;
}

/* solve_task solves task number task of n * n: the columns of the first two queens. */
static long long solve_task(int n, int task)
{
    unsigned all = (1u << n) - 1, first = 1u << task / n, second = 1u << task % n;
    unsigned taken = first, left = first << 1, right = first >> 1;
    if (second & (taken | left | right))
        return 0;
    return solve(all, taken | second, (left | second) << 1, (right | second) >> 1);
}

/* give waits for a rank that asks, and gives it a task; -1 tells it that there is none left. */
static void give(int task)
{
    MPI_Status status;
    MPI_Recv(NULL, 0, MPI_INT, MPI_ANY_SOURCE, ASK, MPI_COMM_WORLD, &status);
    MPI_Send(&task, 1, MPI_INT, status.MPI_SOURCE, TASK, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int n = argc == 2 ? atoi(argv[1]) : 0;
    if (n < 2 || n > LARGEST) {
        if (rank == 0)
            fprintf(stderr, "usage: queens N, with N from 2 to %d\n", LARGEST);
        MPI_Finalize();
        return 2;
    }
    double begun = MPI_Wtime();
    long long own = 0, solutions = 0;
    if (rank == 0) {
        int task = 0, asks;
        while (task < n * n) {
            MPI_Iprobe(MPI_ANY_SOURCE, ASK, MPI_COMM_WORLD, &asks, MPI_STATUS_IGNORE);
            if (asks)
                give(task);
            else
                own += solve_task(n, task);
            task++;
        }
        for (int other = 1; other < ranks; other++)
            give(-1);
    } else {
        /* Each worker asks for its next task before it solves one, so that it need not wait for rank 0 to look. */
        MPI_Send(NULL, 0, MPI_INT, 0, ASK, MPI_COMM_WORLD);
        for (;;) {
            int task;
            MPI_Recv(&task, 1, MPI_INT, 0, TASK, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (task < 0)
                break;
            MPI_Send(NULL, 0, MPI_INT, 0, ASK, MPI_COMM_WORLD);
            own += solve_task(n, task);
        }
    }
    MPI_Reduce(&own, &solutions, 1, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    int wrong = 0;
    if (rank == 0) {
        wrong = solutions != known[n];
        printf("%d queens: %lld solutions%s\nTime in seconds = %.3f\n", n, solutions, wrong ? ", which is wrong" : "", MPI_Wtime() - begun);
    }
    MPI_Bcast(&wrong, 1, MPI_INT, 0, MPI_COMM_WORLD);
    MPI_Finalize();
    return wrong;
}
