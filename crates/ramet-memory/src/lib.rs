//! Layers, views, freeze and written-page tracking
