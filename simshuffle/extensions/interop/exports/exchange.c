/* The exchange of samples of one iteration, as MPI: what simshuffle says that every rank does.
 *
 *     exchange FILE
 *
 * FILE has lines of WIDTH characters: a head, then those of each rank, one for every message and one
 * for the storing. Each rank seeks its own. Under SMPI, what a rank computes is simulated; elsewhere
 * it sleeps. Each rank prints, in seconds after the start: when it had sent all, when all had
 * arrived, when it was done; and when it left each barrier.
 */
#define _POSIX_C_SOURCE 200809L
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define WIDTH 112

typedef struct {
  int target, source;       /* the rank itself: nothing is sent or received */
  long sent, received;      /* bytes */
  double before, late;      /* s: of work; of the cables, before the message leaves */
} Message;

static void compute(double seconds)
{
#ifdef SMPI_SHARED_MALLOC
  smpi_execute_flops(seconds * 1e9); /* the hosts of platform.xml have 1 Gflop/s */
#else
  struct timespec rest = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
  nanosleep(&rest, NULL);
#endif
}

static void* room(long nbytes)
{
#ifdef SMPI_SHARED_MALLOC
  return SMPI_SHARED_MALLOC(nbytes + 1);
#else
  return malloc(nbytes + 1);
#endif
}

static void fail(const char* why)
{
  fprintf(stderr, "exchange: %s\n", why);
  MPI_Abort(MPI_COMM_WORLD, 2);
}

/* The line of that number. */
static void line(FILE* file, long number, char* text)
{
  if (fseek(file, number * WIDTH, SEEK_SET) || !fgets(text, WIDTH + 1, file))
    fail("FILE is too short");
}

int main(int argc, char** argv)
{
  int rank, size, ranks, steps, barriers, last, requests = 0, met = 0;
  long largest = 0;
  double store;
  char text[WIDTH + 1];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  FILE* file = argc == 2 ? fopen(argv[1], "r") : NULL;
  if (!file)
    fail("exchange FILE");
  line(file, 0, text);
  if (sscanf(text, "%d %d %d %d", &ranks, &steps, &barriers, &last) != 4 || ranks != size)
    fail("FILE is for another number of ranks");

  Message* message = malloc(steps * sizeof *message);
  for (int k = 0; k < steps; k++) {
    Message* m = &message[k];
    line(file, 1 + (long)rank * (steps + 1) + k, text);
    if (sscanf(text, "%d %d %ld %ld %lf %lf", &m->target, &m->source, &m->sent, &m->received,
               &m->before, &m->late) != 6)
      fail("a message in FILE is not whole");
    largest = m->sent > largest ? m->sent : largest;
  }
  line(file, 1 + (long)rank * (steps + 1) + steps, text);
  store = atof(text);
  fclose(file);

  void* outgoing = room(largest);
  MPI_Request* request = malloc(2 * steps * sizeof *request);
  double* left = malloc((barriers + 1) * sizeof *left);
  for (int k = 0; k < steps; k++)
    if (message[k].source != rank)
      MPI_Irecv(room(message[k].received), message[k].received, MPI_BYTE, message[k].source, k,
                MPI_COMM_WORLD, &request[requests++]);

  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime(), free_at = 0, ahead = 0;
  for (int k = 0; k < steps; k++) {
    if (k < barriers) {
      MPI_Barrier(MPI_COMM_WORLD);
      left[met++] = MPI_Wtime() - start;
      ahead = 0;
    }
    compute(message[k].before > ahead ? message[k].before - ahead : 0);
    free_at = MPI_Wtime() - start;
    ahead = 0;
    if (message[k].target != rank) {
      compute(message[k].late); /* of the next work, which need not wait for it */
      ahead = message[k].late;
      MPI_Isend(outgoing, message[k].sent, MPI_BYTE, message[k].target, k, MPI_COMM_WORLD,
                &request[requests++]);
    }
  }
  MPI_Waitall(requests, request, MPI_STATUSES_IGNORE);
  double arrived = MPI_Wtime() - start;
  compute(store);
  if (last) {
    MPI_Barrier(MPI_COMM_WORLD);
    left[met++] = MPI_Wtime() - start;
  }
  char* out = malloc(32 * (met + 4));
  int end = sprintf(out, "%d %.12f %.12f %.12f", rank, free_at, arrived, MPI_Wtime() - start);
  for (int k = 0; k < met; k++)
    end += sprintf(out + end, " %.12f", left[k]);
  puts(out);
  MPI_Finalize();
  return 0;
}
