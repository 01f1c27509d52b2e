// The theme gives its search the role of a dialog and no name, which screen readers would read.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
