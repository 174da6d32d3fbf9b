//go:build linux && cgo && !nordma

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "shim.h"

struct vb_lib vb;

// The libraries are never unloaded: their threads, fork handlers and drivers
// do not expect it.
static void *open_library(const char *name, char *err, size_t n)
{
	void *h = dlopen(name, RTLD_NOW | RTLD_LOCAL);

	if (!h)
		snprintf(err, n, "%s", dlerror());
	return h;
}

#define VB_RESOLVE(name) {#name, offsetof(struct vb_lib, name##_)},

static const struct symbol {
	const char *name;
	size_t at;
} verbs_symbols[] = {VB_VERBS(VB_RESOLVE)}, optional_symbols[] = {VB_OPTIONAL(VB_RESOLVE)}, cm_symbols[] = {VB_CM(VB_RESOLVE)};

// dlsym gives the default version of a symbol, which is the one that programs
// linked against the library get.
static const char *resolve(struct vb_lib *lib, void *h, const struct symbol *s, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		void *f = dlsym(h, s[i].name);

		if (!f)
			return s[i].name;
		memcpy((char *)lib + s[i].at, &f, sizeof f);
	}
	return NULL;
}

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

static int load(struct vb_lib *lib, const char *verbs, const char *cm, char *err, size_t n)
{
	const char *missing;
	void *hv, *hc;

	if (!(hv = open_library(verbs, err, n)) || !(hc = open_library(cm, err, n)))
		return -1;
	if ((missing = resolve(lib, hv, verbs_symbols, COUNT(verbs_symbols)))) {
		snprintf(err, n, "%s: too old, it has no %s", verbs, missing);
		return -1;
	}
	if ((missing = resolve(lib, hc, cm_symbols, COUNT(cm_symbols)))) {
		snprintf(err, n, "%s: too old, it has no %s", cm, missing);
		return -1;
	}
	for (size_t i = 0; i < COUNT(optional_symbols); i++)
		resolve(lib, hv, &optional_symbols[i], 1);
	return 0;
}

int vb_load(const char *verbs, const char *cm, char *err, size_t n)
{
	return load(&vb, verbs, cm, err, n);
}

int vb_try(const char *verbs, const char *cm, char *err, size_t n)
{
	struct vb_lib lib;

	memset(&lib, 0, sizeof lib);
	return load(&lib, verbs, cm, err, n);
}

// vb_fork_safe says whether a child of fork may share the pages of a region:
// the kernel copies DMA pages since 5.12.
int vb_fork_safe(void)
{
	return vb.ibv_is_fork_initialized_ && vb.ibv_is_fork_initialized_() == IBV_FORK_UNNEEDED;
}
