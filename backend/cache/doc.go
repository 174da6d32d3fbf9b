// Package cache is a coherent cache in memory over any backend.
package cache
