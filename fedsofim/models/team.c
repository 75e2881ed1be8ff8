/* Work that is shared out among threads, for crowd.c and moments.c. Threads are made for one call, which
   takes some 20 microseconds each: nothing lives on that a fork, or the end of Python, would have to
   mind. */

#include "kernel.h"

#include <pythread.h>

typedef struct {
    const Task *task;
    Py_ssize_t next; /* what nobody has begun */
    PyThread_type_lock lock;
} Team;

typedef struct {
    Team *team;
    float *memory;
    PyThread_type_lock done;
} Member;

static void work_on(Team *team, float *memory)
{
    const Task *task = team->task;
    for (;;) {
        PyThread_acquire_lock(team->lock, WAIT_LOCK);
        const Py_ssize_t i = team->next++;
        PyThread_release_lock(team->lock);
        if (i >= task->count)
            return;
        task->work(task->what, i, memory);
    }
}

static void take_part(void *member)
{
    Member *m = member;
    work_on(m->team, m->memory);
    PyThread_release_lock(m->done); /* the last that it does with what is not its own */
}

/* Start a thread with memory of its own; 0 if there is none to be had, and others do the work. */
static int start(Member *m, Team *team)
{
    *m = (Member){team, PyMem_RawMalloc(team->task->room * sizeof *m->memory), PyThread_allocate_lock()};
    if (m->memory && m->done) {
        PyThread_acquire_lock(m->done, WAIT_LOCK);
        if (PyThread_start_new_thread(take_part, m) != PYTHREAD_INVALID_THREAD_ID)
            return 1;
        PyThread_release_lock(m->done);
    }
    if (m->done)
        PyThread_free_lock(m->done);
    PyMem_RawFree(m->memory);
    return 0;
}

int share_out(const Task *task, Py_ssize_t threads)
{
    const Py_ssize_t more = threads < task->count ? threads - 1 : task->count - 1;
    Team team = {task, 0, NULL};
    Member *members = NULL;
    float *memory = PyMem_RawMalloc(task->room * sizeof *memory);
    Py_ssize_t started = 0;
    int good = memory && (team.lock = PyThread_allocate_lock()) != NULL;
    if (good && more > 0 && (members = PyMem_RawMalloc(more * sizeof *members)))
        while (started < more && start(members + started, &team))
            started++;
    if (good)
        work_on(&team, memory);
    for (Member *m = members; m < members + started; m++) {
        PyThread_acquire_lock(m->done, WAIT_LOCK);
        PyThread_release_lock(m->done);
        PyThread_free_lock(m->done);
        PyMem_RawFree(m->memory);
    }
    if (team.lock)
        PyThread_free_lock(team.lock);
    PyMem_RawFree(members);
    PyMem_RawFree(memory);
    return good;
}
