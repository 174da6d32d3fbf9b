// A plugin for QEMU's user mode that counts the instructions a Go program executes,
// by package, or with the argument by=function by function: one line
// "instructions NAME COUNT" each, at its end. The types are those of qemu-plugin.h,
// version 1, which Debian does not package.
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { NO_REGS };

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t, void (*)(uint64_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *), int, void *);
void qemu_plugin_register_atexit_cb(uint64_t, void (*)(uint64_t, void *), void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
const char *qemu_plugin_insn_symbol(const struct qemu_plugin_insn *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

// All threads count, and without atomics: with GOMAXPROCS=1 there is one that does
// anything much.
enum { MAX_NAMES = 8192, MAX_BLOCK = 1 << 12, MAX_NAME = 160 };

static struct {
	char name[MAX_NAME];
	uint64_t count;
} names[MAX_NAMES];
static size_t used;
static int functions;

// package_length is that of the package's name in a symbol, which is its path up to
// the first dot behind the last slash.
static size_t package_length(const char *symbol)
{
	const char *slash = strrchr(symbol, '/');
	const char *dot = strchr(slash ? slash : symbol, '.');

	return dot ? (size_t)(dot - symbol) : 0;
}

// name is the index of what symbol counts for. Those that find no room are in the
// last one.
static size_t name(const char *symbol)
{
	size_t i, len;

	if (!symbol)
		symbol = "";
	len = functions ? strlen(symbol) : package_length(symbol);
	if (len >= MAX_NAME)
		len = MAX_NAME - 1;
	for (i = 0; i < used; i++)
		if (strlen(names[i].name) == len && memcmp(names[i].name, symbol, len) == 0)
			return i;
	if (used == MAX_NAMES)
		return MAX_NAMES - 1;
	memcpy(names[used].name, symbol, len);
	return used++;
}

static void executed(unsigned vcpu, void *block)
{
	(void)vcpu;
	names[(uintptr_t)block / MAX_BLOCK].count += (uintptr_t)block % MAX_BLOCK;
}

// translated notes for a block how many instructions it has, and whose they are.
static void translated(uint64_t id, struct qemu_plugin_tb *tb)
{
	size_t n = qemu_plugin_tb_n_insns(tb);
	size_t p = name(qemu_plugin_insn_symbol(qemu_plugin_tb_get_insn(tb, 0)));

	(void)id;
	qemu_plugin_register_vcpu_tb_exec_cb(tb, executed, NO_REGS, (void *)(p * MAX_BLOCK + n));
}

static void ended(uint64_t id, void *data)
{
	(void)id;
	(void)data;
	for (size_t i = 0; i < used; i++)
		if (names[i].count > 0)
			fprintf(stderr, "instructions %s %" PRIu64 "\n", names[i].name[0] ? names[i].name : "other", names[i].count);
}

__attribute__((visibility("default"))) int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv)
{
	(void)info;
	for (int i = 0; i < argc; i++)
		functions |= strcmp(argv[i], "by=function") == 0;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	qemu_plugin_register_atexit_cb(id, ended, NULL);
	return 0;
}
