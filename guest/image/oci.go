package image

import (
	"context"
	"errors"
)

func (w *workspace) rootFromArchive(ctx context.Context, recipe Recipe, entry *rootEntry) error {
	return errors.New("not yet")
}
